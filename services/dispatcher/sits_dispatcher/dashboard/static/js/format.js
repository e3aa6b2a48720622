// Numbers as people read them. A missing number is a dash, never a zero.

const NONE = "–";

/** As many digits as one reads at a glance: 0.05, 4.5, 87.3, 1,234. */
export function number(value) {
  if (value == null) return NONE;
  const size = Math.abs(value);
  if (size >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return value.toFixed(size >= 0.095 ? 1 : 2);
}

export function ms(value) {
  if (value == null) return NONE;
  if (value >= 10_000) return `${number(value / 1000)} s`;
  return value >= 1 || value === 0 ? `${number(value)} ms` : `${number(value * 1000)} µs`;
}

export function seconds(value) {
  if (value == null) return NONE;
  if (value < 90) return `${number(value)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  return value < 129_600 ? `${number(value / 3600)} h` : `${number(value / 86_400)} days`;
}

export function percent(share) {
  if (share == null) return NONE;
  const value = 100 * share;
  return value === 100 || value < 99 ? `${Math.round(value)} %` : `${(Math.floor(value * 100) / 100).toFixed(2)} %`;
}

export function bytesRate(bytes) {
  if (bytes == null) return NONE;
  if (bytes >= 1e9) return `${number(bytes / 1e9)} GB/s`;
  return bytes >= 1e6 ? `${number(bytes / 1e6)} MB/s` : `${number(bytes / 1e3)} kB/s`;
}

export function gigabytes(bytes) {
  return bytes == null ? NONE : `${number(bytes / 2 ** 30)} GiB`;
}

/** The part of a process id that people know: `executor-vm-123-3d21e3d7` → `vm-123`. */
export function shortId(id) {
  const parts = id.split("-");
  return parts.length > 2 ? parts.slice(1, -1).join("-") : id;
}

export function cut(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}
