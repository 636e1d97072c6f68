//! Which worker holds how many leading blocks of this prompt?
//!
//! This crate is the vocabulary of KV-aware routing and the one data structure behind it. Three verbs:
//!
//! - *hash*: [`BlockHasher`] turns a prompt's tokens into [`SequenceHash`]es, one per block;
//! - *apply*: [`Index::apply`] takes what an engine says about its cache, a [`KvEvent`];
//! - *overlap*: [`Index::overlap`] answers the question for every worker at once.
//!
//! It does no I/O, starts no thread and has no clock: time comes in as a [`Tick`].
//!
//! ```
//! use kvlane_indexer::{
//!     BlockHasher, BlockSize, EngineBlockId, Index, IndexConfig, KvEvent, Namespace, StoredBlock, Tick, Tier,
//!     WorkerId,
//! };
//!
//! let hasher = BlockHasher::new(BlockSize::new(16).expect("not zero"), Namespace::default());
//! let prompt: Vec<u32> = (0..64).collect();
//!
//! // A worker has computed the first two of the prompt's four blocks and says so.
//! let worker = WorkerId::new(7, 0);
//! let blocks = hasher.blocks(&prompt).zip(100_u64..).take(2);
//! let stored = KvEvent::Stored {
//!     tier: Tier::Device,
//!     parent: None,
//!     blocks: blocks.map(|(hash, id)| StoredBlock { id: EngineBlockId::from(id), hash }).collect(),
//! };
//! let index = Index::new(IndexConfig::default());
//! index.apply(worker, &stored, Tick(1))?;
//!
//! let overlap = index.overlap(&hasher.sequence(&prompt), Tick(2));
//! assert_eq!(overlap.of(worker).device, 2);
//! # Ok::<(), kvlane_indexer::EventError>(())
//! ```

#![forbid(unsafe_code)]

mod block;
mod event;
mod hash;
mod index;
mod names;
mod outline;
mod overlap;
mod predicted;
mod radix;
mod snapshot;
mod sync;
mod worker;

pub use block::{BlockHash, BlockSize, EngineBlockId, SequenceHash, Tier, TokenId};
pub use event::{EventError, KvEvent, StoredBlock};
pub use hash::{BlockHasher, Namespace, media_token};
pub use index::{Applied, Index, IndexConfig, IndexStats, WorkerStats};
pub use outline::{Outline, OutlineNode};
pub use overlap::{Held, Overlap};
pub use predicted::PredictedConfig;
pub use snapshot::SnapshotError;
pub use worker::{Directory, WorkerId};

/// The caller's coarse clock: a count that never goes back, of seconds or tenths of them. Coldness and
/// expiry are measured in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tick(pub u32);
