//! The whole index as bytes, and back.
//!
//! A snapshot holds every node with its sequence hashes once, and for every worker its names for what it
//! holds: 8 bytes a distinct block and 8 bytes a held one, and a little per run of them. All numbers are
//! little-endian:
//!
//! ```text
//! "KVLX"  version u16  reserved u16  nodes u32  workers u32
//! node:   parent u32 (its number in this list, all ones for none)  touched u32  blocks u32  hash u64 ...
//! worker: instance u64  dp_rank u32  runs u32
//! run:    node u32  first u32 (0)  blocks u32  tier u32 (0 device, 1 host, 2 disk)  name u64 ...
//! XXH3-64 of everything before it
//! ```
//!
//! Parents come before their children, and a worker's runs in the order of nodes and blocks. Predictions are
//! not part of it: they would be dead by the time anyone reads it.

use std::collections::{HashMap, HashSet};

use xxhash_rust::xxh3::xxh3_64;

use crate::Tick;
use crate::block::{EngineBlockId, SequenceHash, Tier};
use crate::index::restore::HeldRun;
use crate::index::{Index, IndexConfig};
use crate::names::MAX_DEPTH;
use crate::radix::AnchorId;
use crate::worker::WorkerId;

const MAGIC: [u8; 4] = *b"KVLX";
const VERSION: u16 = 1;
const NO_PARENT: u32 = u32::MAX;

/// Why bytes are not a snapshot this version can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    #[error("snapshot does not begin with `KVLX`: not a snapshot of an index")]
    NotASnapshot,
    #[error("snapshot has version {found}, expected {VERSION}")]
    Version { found: u16 },
    #[error("snapshot does not match its checksum: it was cut short or changed")]
    Checksum,
    #[error("snapshot ends inside `{field}`")]
    Truncated { field: &'static str },
    #[error("snapshot's `{field}` is {value}, expected {expected}")]
    Invalid { field: &'static str, value: u64, expected: &'static str },
    #[error("snapshot has {workers} workers, expected at most {max} (`max_workers`)")]
    TooManyWorkers { workers: u32, max: usize },
}

impl Index {
    /// Everything confirmed, at one moment. Events wait meanwhile; lookups do not.
    pub fn snapshot(&self) -> Vec<u8> {
        self.freeze(|tree, topology, workers| {
            let mut nodes: Vec<_> = topology.live_anchors().collect();
            nodes.sort_unstable_by_key(|(anchor, place)| (place.start, *anchor));
            let numbers: HashMap<AnchorId, u32> =
                nodes.iter().zip(0..).map(|((anchor, _), number)| (*anchor, number)).collect();

            let mut out = Vec::new();
            out.extend_from_slice(&MAGIC);
            out.extend_from_slice(&VERSION.to_le_bytes());
            out.extend_from_slice(&[0; 2]);
            put(&mut out, nodes.len() as u32);
            put(&mut out, workers.len() as u32);
            for (anchor, place) in &nodes {
                put(&mut out, place.parent.map_or(NO_PARENT, |parent| numbers[&parent]));
                put(&mut out, tree.touched(topology, *anchor).0);
                tree.with_hashes(topology, *anchor, |hashes| {
                    put(&mut out, hashes.len() as u32);
                    hashes.iter().for_each(|hash| out.extend_from_slice(&hash.0.to_le_bytes()));
                });
            }
            for (worker, known) in workers {
                let mut names = Vec::with_capacity(known.len());
                for range in known.ranges() {
                    let ids: Vec<_> = range.ids().collect();
                    let (start, mut end) = range.depths();
                    // Node by node, from the run's end up.
                    while start < end {
                        let anchor = topology.resolve(range.anchor(), end - 1);
                        let from = topology.place(anchor).start.max(start);
                        let offset = topology.place(anchor).start;
                        names.extend((from..end).map(|depth| Name {
                            node: numbers[&anchor],
                            tier: range.tier().index() as u32,
                            at: depth - offset,
                            id: ids[(depth - start) as usize],
                        }));
                        end = from;
                    }
                }
                names.sort_unstable();
                put_worker(&mut out, *worker, &names);
            }
            let checksum = xxh3_64(&out);
            out.extend_from_slice(&checksum.to_le_bytes());
            out
        })
    }

    /// A new index that holds what the snapshot says. Bytes that are not a whole snapshot are refused.
    ///
    /// `now` is the caller's clock; nothing restored counts as used later than that.
    pub fn restore(config: IndexConfig, snapshot: &[u8], now: Tick) -> Result<Self, SnapshotError> {
        let mut reader = Reader::open(snapshot)?;
        let index = Self::new(config);
        let nodes = reader.u32("nodes")?;
        let workers = reader.u32("workers")?;
        if workers as usize > config.max_workers {
            return Err(SnapshotError::TooManyWorkers { workers, max: config.max_workers });
        }
        let nodes = reader.nodes(&index, nodes, now)?;
        for _ in 0..workers {
            reader.worker(&index, &nodes)?;
        }
        if !reader.rest.is_empty() {
            let value = reader.rest.len() as u64;
            return Err(SnapshotError::Invalid {
                field: "bytes after the last worker",
                value,
                expected: "none",
            });
        }
        index.finish_restore();
        Ok(index)
    }
}

fn put(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// One name, in the order of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    node: u32,
    tier: u32,
    /// The block's place in its node.
    at: u32,
    id: EngineBlockId,
}

fn put_worker(out: &mut Vec<u8>, worker: WorkerId, names: &[Name]) {
    out.extend_from_slice(&worker.instance.to_le_bytes());
    put(out, worker.dp_rank);
    let runs = || names.chunk_by(|a, b| (a.node, a.tier, a.at + 1) == (b.node, b.tier, b.at));
    put(out, runs().count() as u32);
    for run in runs() {
        let Name { node, tier, at, .. } = run[0];
        [node, at, run.len() as u32, tier].iter().for_each(|value| put(out, *value));
        run.iter().for_each(|name| out.extend_from_slice(&name.id.to_u64().to_le_bytes()));
    }
}

/// A node that has been rebuilt.
#[derive(Clone, Copy, Debug)]
struct Rebuilt {
    anchor: AnchorId,
    start: u32,
    len: u32,
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn open(snapshot: &'a [u8]) -> Result<Self, SnapshotError> {
        let Some(after_magic) = snapshot.strip_prefix(&MAGIC) else {
            return Err(SnapshotError::NotASnapshot);
        };
        let mut reader = Self { rest: after_magic };
        let [a, b, _, _] = reader.bytes::<4>("version")?;
        let found = u16::from_le_bytes([a, b]);
        if found != VERSION {
            return Err(SnapshotError::Version { found });
        }
        let Some((rest, checksum)) = reader.rest.split_last_chunk::<8>() else {
            return Err(SnapshotError::Truncated { field: "checksum" });
        };
        if xxh3_64(&snapshot[..snapshot.len() - 8]) != u64::from_le_bytes(*checksum) {
            return Err(SnapshotError::Checksum);
        }
        Ok(Self { rest })
    }

    fn bytes<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], SnapshotError> {
        let (bytes, rest) = self.rest.split_first_chunk::<N>().ok_or(SnapshotError::Truncated { field })?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn u32(&mut self, field: &'static str) -> Result<u32, SnapshotError> {
        self.bytes(field).map(u32::from_le_bytes)
    }

    fn u64(&mut self, field: &'static str) -> Result<u64, SnapshotError> {
        self.bytes(field).map(u64::from_le_bytes)
    }

    /// A count of things that take `size` bytes each; refused when that many cannot follow, so that a wrong
    /// count cannot ask for more memory than the snapshot has.
    fn count(&mut self, field: &'static str, size: usize) -> Result<u32, SnapshotError> {
        let count = self.u32(field)?;
        if self.rest.len() / size < count as usize {
            return Err(SnapshotError::Truncated { field });
        }
        Ok(count)
    }

    fn nodes(&mut self, index: &Index, count: u32, now: Tick) -> Result<Vec<Rebuilt>, SnapshotError> {
        let invalid = |field, value: u32, expected| {
            Err(SnapshotError::Invalid { field, value: u64::from(value), expected })
        };
        let mut nodes: Vec<Rebuilt> = Vec::new();
        let mut seen = HashSet::new();
        for number in 0..count {
            let parent = self.u32("node.parent")?;
            let touched = Tick(self.u32("node.touched")?).min(now);
            let len = self.count("node.blocks", 8)?;
            if len == 0 {
                return invalid("node.blocks", len, "at least one");
            }
            let hashes = (0..len).map(|_| self.u64("node.hash").map(SequenceHash));
            let hashes = hashes.collect::<Result<Vec<_>, _>>()?;
            let parent = match (parent, nodes.get(parent as usize)) {
                (NO_PARENT, _) => None,
                (_, Some(parent)) => Some(*parent),
                (_, None) => return invalid("node.parent", parent, "a node before it"),
            };
            let start = parent.map_or(0, |parent| parent.start + parent.len);
            if u64::from(start) + u64::from(len) > u64::from(MAX_DEPTH) {
                return invalid("node.blocks", len, "a path within the depth limit");
            }
            if !(start..).zip(hashes.iter().copied()).all(|place| seen.insert(place)) {
                return invalid("node.hash", number, "blocks that stand in one place each");
            }
            match index.graft(parent.map(|parent| parent.anchor), start, hashes, touched) {
                Some(anchor) => nodes.push(Rebuilt { anchor, start, len }),
                None => return invalid("node", number, "a first block of its own"),
            }
        }
        Ok(nodes)
    }

    fn worker(&mut self, index: &Index, nodes: &[Rebuilt]) -> Result<(), SnapshotError> {
        let worker = WorkerId::new(self.u64("worker.instance")?, self.u32("worker.dp_rank")?);
        let runs = self.count("worker.runs", 16)?;
        let mut held = Vec::new();
        // A worker holds leading parts of nodes, so there is one run per node and tier, from the first block.
        let mut last = None;
        for _ in 0..runs {
            let number = self.u32("run.node")?;
            let first = self.u32("run.first")?;
            let blocks = self.count("run.blocks", 8)?;
            let tier = self.u32("run.tier")?;
            let invalid = |field, value, expected| {
                Err(SnapshotError::Invalid { field, value: u64::from(value), expected })
            };
            let Some(node) = nodes.get(number as usize) else {
                return invalid("run.node", number, "a node of this snapshot");
            };
            let Some(known_tier) = Tier::ALL.get(tier as usize) else {
                return invalid("run.tier", tier, "0, 1 or 2");
            };
            if last.is_some_and(|last| last >= (number, tier)) {
                return invalid("run.node", number, "runs in the order of nodes and tiers");
            }
            last = Some((number, tier));
            if first != 0 {
                return invalid("run.first", first, "0: workers hold leading parts of nodes");
            }
            if blocks == 0 || blocks > node.len {
                return invalid("run.blocks", blocks, "blocks of its node");
            }
            let ids = (0..blocks).map(|_| self.u64("run.name").map(EngineBlockId::from));
            let ids = ids.collect::<Result<Vec<_>, _>>()?;
            held.push(HeldRun { anchor: node.anchor, tier: *known_tier, depth: node.start, ids });
        }
        index.restore_worker(worker, held)
    }
}

#[cfg(test)]
mod tests;
