import type { Tree, TreeNode } from '../wire';

/** A node of the tree with its place on the page. */
export type Row = { node: TreeNode; depth: number };

/** From the roots down; of each node's children the one with most beneath it first. */
export function rows(nodes: readonly TreeNode[]): Row[] {
  const known = new Set(nodes.map((node) => node.id));
  const children = new Map<number | null, TreeNode[]>();
  for (const node of nodes) {
    const parent = node.parent !== null && known.has(node.parent) ? node.parent : null;
    const siblings = children.get(parent);
    if (siblings) siblings.push(node);
    else children.set(parent, [node]);
  }
  const found: Row[] = [];
  const visit = (parent: number | null, depth: number) => {
    const siblings = children.get(parent) ?? [];
    // Taken away as it is visited: a ring of parents cannot hold us up.
    children.delete(parent);
    siblings.sort((one, other) => other.below - one.below);
    for (const node of siblings) {
      found.push({ node, depth });
      visit(node.id, depth + 1);
    }
  };
  visit(null, 0);
  return found;
}

/** Leading blocks of a node that a worker holds. */
export function heldBy(node: TreeNode, worker: string): number {
  return node.holders.find((holder) => holder.worker === worker)?.blocks ?? 0;
}

/** Blocks evicted a second by each worker between two looks; none where it cannot be told. */
export function evictionRates(before: Tree | null, now: Tree): Map<string, number | null> {
  const passed = before === null ? 0 : now.at - before.at;
  return new Map(
    now.workers.map((worker) => {
      const earlier = before?.workers.find((one) => one.name === worker.name)?.evicted_blocks ?? null;
      const known = worker.evicted_blocks !== null && earlier !== null && passed > 0;
      // A counter that fell belongs to an engine that began anew.
      const more = known ? (worker.evicted_blocks ?? 0) - (earlier ?? 0) : -1;
      return [worker.name, more >= 0 ? more / passed : null];
    }),
  );
}
