//! The most naive thing that could answer the index's question, and histories that are applied to both.
//!
//! A map from (worker, tier, name) to the block's whole path; its overlap is found by trying every depth. Used by
//! `tests/model.rs` and by the fuzz target `index_events`.

use std::collections::BTreeMap;

use kvlane_indexer::{
    BlockHash, EngineBlockId, Held, Index, IndexConfig, KvEvent, SequenceHash, StoredBlock, Tick, Tier,
    WorkerId,
};

pub(crate) const WORKERS: u64 = 4;

pub(crate) fn worker(n: u64) -> WorkerId {
    WorkerId::new(n / 2, (n % 2) as u32)
}

/// A path is a word over a tiny alphabet, so that paths share prefixes, branch and meet again.
pub(crate) type Path = Vec<u8>;

pub(crate) fn name(worker: u64, path: &[u8]) -> EngineBlockId {
    // Odd workers have names of their own, even ones share theirs, as engines with and without a hash seed do.
    let mut bytes = path.to_vec();
    bytes.push(if worker % 2 == 1 { worker as u8 + 100 } else { 100 });
    EngineBlockId::from(&bytes[..])
}

pub(crate) fn block_hash(letter: u8) -> BlockHash {
    BlockHash(u64::from(letter) + 1)
}

pub(crate) fn sequence(path: &[u8]) -> Vec<SequenceHash> {
    SequenceHash::chain(None, path.iter().map(|letter| block_hash(*letter))).collect()
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Store {
        worker: u64,
        tier: Tier,
        path: Path,
        from: usize,
    },
    Remove {
        worker: u64,
        tier: Tier,
        picks: Vec<usize>,
    },
    /// A whole path, as one event, from its end or from its beginning.
    RemovePath {
        worker: u64,
        tier: Tier,
        path: Path,
        backwards: bool,
    },
    Clear {
        worker: u64,
        tier: Option<Tier>,
    },
    Forget {
        worker: u64,
    },
    Restore,
}

#[derive(Debug)]
pub(crate) struct Naive {
    pub(crate) held: BTreeMap<(u64, Tier, EngineBlockId), Path>,
    /// Of the index beside it.
    pub(crate) config: IndexConfig,
    /// The index gave up blocks to hold its budget, and may know less from then on.
    pub(crate) knows_more: bool,
}

impl Naive {
    pub(crate) fn new(config: IndexConfig) -> Self {
        Self { held: BTreeMap::new(), config, knows_more: false }
    }

    pub(crate) fn holds(&self, worker: u64, tier: Tier, path: &[u8]) -> bool {
        self.held.contains_key(&(worker, tier, name(worker, path)))
    }

    pub(crate) fn run(&self, worker: u64, tier: Tier, prompt: &[u8], from: usize) -> usize {
        (from..prompt.len()).take_while(|at| self.holds(worker, tier, &prompt[..=*at])).count() + from
    }

    pub(crate) fn overlap(&self, worker: u64, prompt: &[u8]) -> Held {
        let device = self.run(worker, Tier::Device, prompt, 0);
        let host = self.run(worker, Tier::Host, prompt, device);
        let disk = self.run(worker, Tier::Disk, prompt, host);
        Held { device: device as u32, host: host as u32, disk: disk as u32, predicted: 0 }
    }
}

pub(crate) fn config() -> IndexConfig {
    IndexConfig { shards: 4, ..IndexConfig::default() }
}

pub(crate) fn apply(index: &mut Index, naive: &mut Naive, step: &Step) {
    match step {
        Step::Store { worker: n, tier, path, from } => {
            let from = *from % path.len();
            let known = from == 0 || Tier::ALL.iter().any(|tier| naive.holds(*n, *tier, &path[..from]));
            let blocks = (from..path.len())
                .map(|at| StoredBlock { id: name(*n, &path[..=at]), hash: block_hash(path[at]) })
                .collect();
            let parent = (from > 0).then(|| name(*n, &path[..from]));
            let event = KvEvent::Stored { tier: *tier, parent, blocks };
            let applied = index.apply(worker(*n), &event, Tick(1)).unwrap();
            let mut new = 0;
            if known {
                for at in from..path.len() {
                    let key = (*n, *tier, name(*n, &path[..=at]));
                    new += usize::from(naive.held.insert(key, path[..=at].to_vec()).is_none());
                }
            }
            if !naive.knows_more {
                assert_eq!((applied.stored, applied.orphaned > 0), (new, !known));
            }
        }
        Step::Remove { worker: n, tier, picks } => {
            let mine: Vec<_> =
                naive.held.keys().filter(|key| key.0 == *n && key.1 == *tier).map(|key| key.2).collect();
            let mut ids: Vec<_> =
                picks.iter().filter_map(|pick| mine.get(pick.checked_rem(mine.len())?)).copied().collect();
            ids.push(EngineBlockId::from(12345_u64));
            remove(index, naive, *n, *tier, ids);
        }
        Step::RemovePath { worker: n, tier, path, backwards } => {
            let mut ids: Vec<_> = (0..path.len()).map(|at| name(*n, &path[..=at])).collect();
            if *backwards {
                ids.reverse();
            }
            remove(index, naive, *n, *tier, ids);
        }
        Step::Clear { worker: n, tier } => {
            let _ = index.apply(worker(*n), &KvEvent::Cleared { tier: *tier }, Tick(1)).unwrap();
            naive.held.retain(|key, _| key.0 != *n || tier.is_some_and(|tier| key.1 != tier));
        }
        Step::Forget { worker: n } => {
            index.forget(worker(*n));
            naive.held.retain(|key, _| key.0 != *n);
        }
        Step::Restore => {
            let restored = Index::restore(naive.config, &index.snapshot(), Tick(9)).unwrap();
            let (a, b) = (index.stats(), restored.stats());
            if b.forgotten_blocks_total == 0 {
                assert_eq!((a.nodes, a.distinct_blocks), (b.nodes, b.distinct_blocks));
            }
            *index = restored;
        }
    }
    naive.knows_more |= index.stats().forgotten_blocks_total > 0;
}

pub(crate) fn remove(index: &Index, naive: &mut Naive, n: u64, tier: Tier, ids: Vec<EngineBlockId>) {
    let gone = ids.iter().filter(|id| naive.held.remove(&(n, tier, **id)).is_some()).count();
    let unknown = ids.len() - gone;
    let applied = index.apply(worker(n), &KvEvent::Removed { tier, ids }, Tick(1)).unwrap();
    if !naive.knows_more {
        assert_eq!((applied.removed, applied.unknown), (gone, unknown));
    }
}

pub(crate) fn agree(index: &Index, naive: &Naive, prompt: &[u8]) {
    let overlap = index.overlap(&sequence(prompt), Tick(1));
    for n in 0..WORKERS {
        let found = Held { predicted: 0, ..overlap.of(worker(n)) };
        let expected = naive.overlap(n, prompt);
        if naive.knows_more {
            let no_more =
                [(found.device, expected.device), (found.host, expected.host), (found.disk, expected.disk)]
                    .iter()
                    .all(|(found, expected)| found <= expected);
            assert!(no_more, "worker {n}, prompt {prompt:?}: {found:?}, at most {expected:?}");
        } else {
            assert_eq!(found, expected, "worker {n}, prompt {prompt:?}");
        }
    }
}
