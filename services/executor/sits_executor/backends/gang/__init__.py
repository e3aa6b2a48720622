"""One model over several GPUs of a link domain: tensor parallel, one process a GPU."""
