"""The demo's parts: each sends real inputs through tritonclient and checks the answers."""
