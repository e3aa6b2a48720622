// Where devices and executors of one host stand: two columns, one a half of the machine.

const ROW = 46;
const PILL = { height: 22, gap: 4 };
const TOP = 10;

/** Nodes and executor pills with positions, for a drawing `width` wide. */
export function place(host, executors, width) {
  const sizes = sizesFor(width);
  const columns = split(host.devices);
  const placed = new Map();
  let height = 0;
  columns.forEach((devices, side) => {
    let y = TOP;
    for (const device of devices) {
      const own = executors.filter((executor) => executor.device === device.id);
      const tall = Math.max(ROW, own.length * (PILL.height + PILL.gap) + 8);
      placed.set(device.id, node(device, own, side, y, tall, sizes, columns[1].length === 0));
      y += tall;
    }
    height = Math.max(height, y);
  });
  return { nodes: [...placed.values()], byId: placed, width, height: height + TOP, sizes };
}

function sizesFor(width) {
  const narrow = width < 520;
  return { width, node: narrow ? 84 : 104, pill: narrow ? 44 : 118, gap: narrow ? 4 : 8, height: 36, narrow };
}

function node(device, executors, side, top, tall, sizes, alone) {
  const left = alone ? (sizes.width - sizes.node) / 2 : sizes.pill + sizes.gap;
  const x = side === 0 ? left : sizes.width - sizes.pill - sizes.gap - sizes.node;
  const middle = top + tall / 2;
  const pillX = side === 0 ? x - sizes.gap - sizes.pill : x + sizes.node + sizes.gap;
  const first = middle - (executors.length * (PILL.height + PILL.gap) - PILL.gap) / 2;
  return {
    device,
    side,
    x,
    y: middle - sizes.height / 2,
    middle,
    inner: side === 0 ? x + sizes.node : x, // where links start
    pills: executors.map((executor, i) => ({ executor, x: pillX, y: first + i * (PILL.height + PILL.gap) })),
  };
}

/** Halves of the machine: accelerators by NUMA node, each with the CPUs and NICs next to it. */
function split(devices) {
  const accelerators = devices.filter((d) => d.kind === "gpu" || d.kind === "mig").sort(byPlace);
  const others = devices.filter((d) => d.kind !== "gpu" && d.kind !== "mig").sort(byKind);
  const sideOf = halves(accelerators.length ? accelerators : others.filter((d) => d.kind === "cpu"));
  const columns = [[], []];
  for (const device of [...accelerators, ...others]) {
    columns[sideOf(device, columns)].push(device);
  }
  return columns[0].length ? columns : columns.reverse();
}

function halves(leading) {
  const nodes = [...new Set(leading.map((d) => d.numa_node))];
  const leftNodes = new Set(nodes.slice(0, Math.ceil(nodes.length / 2)));
  const half = Math.ceil(leading.length / 2);
  return (device, columns) => {
    const position = leading.indexOf(device);
    if (nodes.length < 2 && position >= 0) return position < half ? 0 : 1;
    if (nodes.includes(device.numa_node) && nodes.length > 1) return leftNodes.has(device.numa_node) ? 0 : 1;
    return columns[0].length <= columns[1].length ? 0 : 1;
  };
}

const ORDER = { gpu: 0, mig: 0, cpu: 1, nic: 2 };
const byPlace = (a, b) => (a.numa_node ?? 99) - (b.numa_node ?? 99) || (a.index ?? 0) - (b.index ?? 0);
const byKind = (a, b) => (ORDER[a.kind] ?? 3) - (ORDER[b.kind] ?? 3) || byPlace(a, b) || (a.id < b.id ? -1 : 1);

/** The way of a link between two nodes, and the middle of it. */
export function path(from, to, { width }) {
  if (from.side === to.side) {
    const away = Math.abs(from.middle - to.middle);
    const bulge = Math.min(24 + away * 0.28, width * 0.2) * (from.side === 0 ? 1 : -1);
    const x = from.inner + bulge;
    return {
      d: `M${from.inner},${from.middle}C${x},${from.middle} ${x},${to.middle} ${to.inner},${to.middle}`,
      x: from.inner + bulge * 0.75,
      y: (from.middle + to.middle) / 2,
    };
  }
  const middle = (from.inner + to.inner) / 2;
  return {
    d: `M${from.inner},${from.middle}C${middle},${from.middle} ${middle},${to.middle} ${to.inner},${to.middle}`,
    x: middle,
    y: (from.middle + to.middle) / 2,
  };
}
