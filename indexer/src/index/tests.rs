//! The index's promises, one by one. Random histories are in `tests/model.rs`.

use super::*;

use crate::block::BlockHash;
use crate::event::StoredBlock;

const A: WorkerId = WorkerId::new(1, 0);
const B: WorkerId = WorkerId::new(1, 1);
const C: WorkerId = WorkerId::new(2, 0);

fn index() -> Index {
    Index::new(IndexConfig { shards: 4, ..IndexConfig::default() })
}

/// A prompt is a list of letters; a block's name is the letters up to it.
fn id(path: &str) -> EngineBlockId {
    EngineBlockId::from(path.as_bytes())
}

fn stored_on(tier: Tier, parent: &str, blocks: &str) -> KvEvent {
    let path = format!("{parent}{blocks}");
    let blocks = (parent.len()..path.len())
        .map(|at| StoredBlock { id: id(&path[..=at]), hash: BlockHash(u64::from(path.as_bytes()[at])) })
        .collect();
    KvEvent::Stored { tier, parent: (!parent.is_empty()).then(|| id(parent)), blocks }
}

fn stored(parent: &str, blocks: &str) -> KvEvent {
    stored_on(Tier::Device, parent, blocks)
}

fn removed(paths: &[&str]) -> KvEvent {
    KvEvent::Removed { tier: Tier::Device, ids: paths.iter().map(|path| id(path)).collect() }
}

fn hashes(path: &str) -> Vec<SequenceHash> {
    SequenceHash::chain(None, path.bytes().map(|byte| BlockHash(u64::from(byte)))).collect()
}

trait Say {
    fn say(&self, worker: WorkerId, event: &KvEvent) -> Applied;
    fn depth(&self, worker: WorkerId, prompt: &str) -> u32;
    fn nodes(&self) -> usize;
}

impl Say for Index {
    fn say(&self, worker: WorkerId, event: &KvEvent) -> Applied {
        let applied = self.apply(worker, event, Tick(1)).unwrap();
        self.check();
        applied
    }

    fn depth(&self, worker: WorkerId, prompt: &str) -> u32 {
        self.overlap(&hashes(prompt), Tick(1)).of(worker).device
    }

    fn nodes(&self) -> usize {
        self.stats().nodes
    }
}

#[test]
fn blocks_stored_again_are_told_by_name() {
    let index = index();
    let noting = |event: &KvEvent| {
        let mut held = Vec::new();
        let _ = index.apply_noting(A, event, Tick(1), |id| held.push(id)).unwrap();
        index.check();
        held
    };
    assert_eq!(noting(&stored("", "abc")), []);
    assert_eq!(noting(&stored("a", "bcd")), [id("ab"), id("abc")]);
    assert_eq!(noting(&stored("abcd", "e")), []);
    assert_eq!(noting(&stored("abcd", "e")), [id("abcde")]);
    assert_eq!(noting(&removed(&["abc"])), []);
    assert_eq!(noting(&stored("", "abcdef")), ["a", "ab", "abcd", "abcde"].map(id));
    assert_eq!(noting(&stored("", "xy")), []);
    assert_eq!(noting(&stored("ab", "c")), [id("abc")]);
}

#[test]
fn leading_blocks_are_counted_per_worker() {
    let index = index();
    let _ = index.say(A, &stored("", "abcd"));
    let _ = index.say(B, &stored("", "ab"));
    let _ = index.say(B, &stored("ab", "xy"));
    assert_eq!(["abcde", "abxyz", "ab", "a", "x", ""].map(|p| index.depth(A, p)), [4, 2, 2, 1, 0, 0]);
    assert_eq!(["abcde", "abxyz", "ab", "a", "x", ""].map(|p| index.depth(B, p)), [2, 4, 2, 1, 0, 0]);
    assert_eq!(index.depth(C, "abcd"), 0);
}

#[test]
fn integer_and_byte_names_find_their_parents() {
    let block = |id, hash| StoredBlock { id, hash: BlockHash(hash) };
    for (first, second) in [
        (EngineBlockId::from(-5_i64), EngineBlockId::from(7_u64)),
        (EngineBlockId::from(&[1_u8; 32][..]), EngineBlockId::from(&[2_u8; 32][..])),
    ] {
        let index = index();
        let (tier, parent) = (Tier::Device, None);
        let _ = index.say(A, &KvEvent::Stored { tier, parent, blocks: vec![block(first, 97)] });
        let _ = index.say(A, &KvEvent::Stored { tier, parent: Some(first), blocks: vec![block(second, 98)] });
        assert_eq!(index.depth(A, "ab"), 2);
        let _ = index.say(A, &KvEvent::Removed { tier, ids: vec![second] });
        assert_eq!(index.depth(A, "ab"), 1);
    }
}

#[test]
fn orphans_are_counted_and_dropped_and_never_become_roots() {
    let index = index();
    let applied = index.say(A, &stored("ab", "cd"));
    assert_eq!(applied, Applied { orphaned: 2, ..Applied::default() });
    assert_eq!((index.depth(A, "cd"), index.depth(A, "abcd"), index.nodes()), (0, 0, 0));
    // Another worker's parent is no parent.
    let _ = index.say(B, &stored("", "ab"));
    assert_eq!(index.say(A, &stored("ab", "cd")).orphaned, 2);
    assert_eq!(index.stats().orphaned_blocks_total, 4);
}

#[test]
fn storing_what_is_held_changes_nothing() {
    let index = index();
    let _ = index.say(A, &stored("", "abc"));
    assert_eq!(index.say(A, &stored("", "abc")), Applied::default());
    assert_eq!(index.say(A, &stored("a", "bcd")).stored, 1);
    let _ = index.say(A, &removed(&["abcd"]));
    assert_eq!((index.depth(A, "abcd"), index.stats().workers[0].device_blocks), (3, 3));
}

#[test]
fn a_hole_ends_the_overlap_and_what_is_below_counts_again_once_it_is_filled() {
    let index = index();
    let _ = index.say(A, &stored("", "abcdef"));
    let _ = index.say(A, &removed(&["abc"]));
    assert_eq!((index.depth(A, "abcdef"), index.stats().workers[0].device_blocks), (2, 5));
    let _ = index.say(A, &stored("ab", "c"));
    assert_eq!((index.depth(A, "abcdef"), index.nodes()), (6, 1));
    // Also when the hole is the beginning, and when the lower part goes meanwhile.
    let _ = index.say(A, &removed(&["a"]));
    assert_eq!(index.depth(A, "abcdef"), 0);
    let _ = index.say(A, &removed(&["abcdef"]));
    let _ = index.say(A, &stored("", "a"));
    assert_eq!((index.depth(A, "abcdef"), index.nodes()), (5, 1));
}

#[test]
fn a_hole_of_one_worker_is_not_another_ones() {
    let index = index();
    let _ = index.say(A, &stored("", "abcdef"));
    let _ = index.say(B, &stored("", "abcd"));
    let _ = index.say(A, &removed(&["abc", "abcd"]));
    assert_eq!((index.depth(A, "abcdef"), index.depth(B, "abcdef")), (2, 4));
    let _ = index.say(B, &removed(&["abcd", "abc"]));
    assert_eq!((index.depth(A, "abcdef"), index.depth(B, "abcdef")), (2, 2));
    let _ = index.say(B, &stored("ab", "cdef"));
    assert_eq!((index.depth(A, "abcdef"), index.depth(B, "abcdef")), (2, 6));
}

#[test]
fn blocks_below_a_hole_can_be_extended_and_removed() {
    let index = index();
    let _ = index.say(A, &stored("", "abcd"));
    let _ = index.say(A, &removed(&["ab", "a"]));
    assert_eq!(index.say(A, &stored("abcd", "ef")).stored, 2);
    assert_eq!(index.say(A, &stored("abc", "xy")).stored, 2);
    let _ = index.say(A, &stored("", "ab"));
    assert_eq!((index.depth(A, "abcdef"), index.depth(A, "abcxy")), (6, 5));
    let _ = index.say(A, &removed(&["abcxy", "abcx", "ab", "abcdef", "abcde", "abcd", "a", "abc"]));
    assert_eq!((index.nodes(), index.stats().distinct_blocks), (0, 0));
}

#[test]
fn tiers_are_kept_and_reported_apart() {
    let index = index();
    let _ = index.say(A, &stored("", "abc"));
    let _ = index.say(A, &stored_on(Tier::Host, "abc", "de"));
    let _ = index.say(A, &stored_on(Tier::Disk, "abcde", "f"));
    let held = |prompt: &str| index.overlap(&hashes(prompt), Tick(1)).of(A);
    assert_eq!(held("abcdefg"), Held { device: 3, host: 5, disk: 6, predicted: 0 });
    assert_eq!(held("abcd"), Held { device: 3, host: 4, disk: 4, predicted: 0 });
    // Offloaded copies of what is on the device as well add nothing to the reach.
    let _ = index.say(A, &stored_on(Tier::Host, "", "abc"));
    assert_eq!(held("abcdefg"), Held { device: 3, host: 5, disk: 6, predicted: 0 });
    // Evicted from the device, the host's copies carry on from there.
    let _ = index.say(A, &removed(&["abc", "ab"]));
    assert_eq!(held("abcdefg"), Held { device: 1, host: 5, disk: 6, predicted: 0 });
    // The device does not take over again after the host: engines continue downwards only.
    let _ = index.say(A, &stored("", "abcdefg"));
    let ids = vec![id("ab")];
    let _ = index.say(A, &KvEvent::Removed { tier: Tier::Device, ids });
    let ids = vec![id("abc")];
    let _ = index.say(A, &KvEvent::Removed { tier: Tier::Host, ids });
    assert_eq!(held("abcdefg"), Held { device: 1, host: 2, disk: 2, predicted: 0 });
    let stats = index.stats().workers[0];
    assert_eq!((stats.device_blocks, stats.host_blocks, stats.disk_blocks, stats.blocks()), (6, 4, 1, 11));
    let _ = index.say(A, &KvEvent::Cleared { tier: Some(Tier::Host) });
    assert_eq!(held("abcdefg"), Held { device: 1, host: 1, disk: 1, predicted: 0 });
    let _ = index.say(A, &KvEvent::Cleared { tier: None });
    assert_eq!(index.nodes(), 0);
}

use crate::overlap::Held;

#[test]
fn removing_from_a_tier_where_it_is_not_changes_nothing() {
    let index = index();
    let _ = index.say(A, &stored("", "ab"));
    let gone = KvEvent::Removed { tier: Tier::Host, ids: vec![id("ab")] };
    assert_eq!(index.say(A, &gone), Applied { unknown: 1, ..Applied::default() });
    assert_eq!(index.depth(A, "ab"), 2);
}

#[test]
fn clearing_and_forgetting_leave_the_others_alone() {
    let index = index();
    let _ = index.say(A, &stored("", "abcd"));
    let _ = index.say(B, &stored("", "abx"));
    assert_eq!(index.say(A, &KvEvent::Cleared { tier: None }).removed, 4);
    assert_eq!((index.depth(A, "abcd"), index.depth(B, "abx"), index.nodes()), (0, 3, 1));
    assert!(index.forget(B));
    assert!(!index.forget(B));
    index.check();
    assert_eq!((index.nodes(), index.stats().workers.len()), (0, 1));
}

#[test]
fn a_recycled_slot_starts_from_nothing() {
    let index = index();
    let _ = index.say(A, &stored("", "ab"));
    let _ = index.say(B, &stored("", "abcd"));
    let before = index.overlap(&hashes("abcd"), Tick(1));
    assert!(index.predict(B, &hashes("abcdef"), Tick(1)));
    assert!(index.forget(B));
    let _ = index.say(C, &stored("", "a"));
    let after = index.overlap(&hashes("abcdef"), Tick(1));
    // Same slot, another worker; each answer speaks of the workers of its time.
    assert_eq!((before.of(B).device, before.of(C).device), (4, 0));
    assert_eq!(
        (after.of(B), after.of(C)),
        (Held::default(), Held { device: 1, host: 1, disk: 1, predicted: 0 })
    );
    assert_eq!(after.device(), [2, 1]);
    assert_eq!(after.directory().worker_count(), 2);
}

#[test]
fn one_root_and_several_roots() {
    let index = index();
    for (root, worker) in ["s", "t", "u"].iter().zip([A, B, C]) {
        let _ = index.say(worker, &stored("", &format!("{root}abc")));
        let _ = index.say(worker, &stored(&format!("{root}a"), "xyz"));
    }
    assert_eq!(index.nodes(), 9);
    assert_eq!((index.depth(A, "saxyz"), index.depth(B, "taxyz"), index.depth(C, "saxyz")), (5, 5, 0));
    // Everyone on one root: borders only where prompts part.
    for worker in [A, B, C] {
        let _ = index.say(worker, &stored("", "sabc"));
    }
    assert_eq!((index.depth(B, "sabc"), index.nodes()), (4, 9));
}

#[test]
fn cuts_are_undone_once_their_reason_is_gone() {
    let index = index();
    let _ = index.say(A, &stored("", "abcdefgh"));
    let before = (index.nodes(), index.stats().distinct_blocks);
    for (parent, branch) in [("abcd", "xy"), ("ab", "pq"), ("abcdef", "mn")] {
        let _ = index.say(B, &stored("", parent));
        let _ = index.say(B, &stored(parent, branch));
    }
    assert_eq!(index.nodes(), 7);
    for path in
        ["abcdefmn", "abcdefm", "abcdef", "abcde", "abcdxy", "abcdx", "abcd", "abc", "abpq", "abp", "ab", "a"]
    {
        let _ = index.say(B, &removed(&[path]));
    }
    assert_eq!((index.nodes(), index.stats().distinct_blocks), before);
    assert_eq!(index.depth(A, "abcdefgh"), 8);
}

#[test]
fn a_second_name_for_a_held_block_is_ignored() {
    let index = index();
    let _ = index.say(A, &stored("", "ab"));
    let block = StoredBlock { id: id("other"), hash: BlockHash(u64::from(b'b')) };
    let again = KvEvent::Stored { tier: Tier::Device, parent: Some(id("a")), blocks: vec![block] };
    assert_eq!(index.say(A, &again), Applied::default());
    assert_eq!(index.say(A, &removed(&["other"])).unknown, 1);
    let _ = index.say(A, &removed(&["ab"]));
    assert_eq!(index.depth(A, "ab"), 1);
}

#[test]
fn a_hundred_thousand_blocks_make_one_prompt() {
    let index = index();
    let block = |n: u64| StoredBlock { id: EngineBlockId::from(n), hash: BlockHash(n) };
    let mut parent = None;
    for start in (0..100_000).step_by(1000) {
        let blocks: Vec<_> = (start..start + 1000).map(block).collect();
        let last = blocks[999].id;
        let _ = index.apply(A, &KvEvent::Stored { tier: Tier::Device, parent, blocks }, Tick(1)).unwrap();
        parent = Some(last);
    }
    let prompt: Vec<_> = SequenceHash::chain(None, (0..100_000).map(BlockHash)).collect();
    assert_eq!((index.overlap(&prompt, Tick(1)).of(A).device, index.nodes()), (100_000, 1));
    // Every other block gone: as many nodes as blocks left, and one block of overlap.
    let ids = (1..100_000).step_by(2).map(|n| EngineBlockId::from(n as u64)).collect();
    let _ = index.apply(A, &KvEvent::Removed { tier: Tier::Device, ids }, Tick(1)).unwrap();
    assert_eq!(index.overlap(&prompt, Tick(1)).of(A).device, 1);
    index.check();
    let _ = index.say(A, &KvEvent::Cleared { tier: None });
    assert_eq!(index.nodes(), 0);
}

#[test]
fn impossible_events_are_refused_and_leave_the_index_as_it_was() {
    let config = IndexConfig { max_workers: 2, ..IndexConfig::default() };
    let index = Index::new(config);
    let _ = index.say(A, &stored("", "ab"));
    let before = index.stats();
    let twice = KvEvent::Stored {
        tier: Tier::Device,
        parent: None,
        blocks: vec![StoredBlock { id: id("x"), hash: BlockHash(1) }; 2],
    };
    assert_eq!(index.apply(A, &twice, Tick(1)), Err(EventError::RepeatedBlock { first: 0, second: 1 }));
    let nothing = KvEvent::Stored { tier: Tier::Device, parent: None, blocks: Vec::new() };
    assert_eq!(index.apply(A, &nothing, Tick(1)), Err(EventError::NoBlocks));
    assert_eq!(index.stats(), before);
    let _ = index.say(B, &stored("", "a"));
    let refused = index.apply(C, &stored("", "a"), Tick(1)).unwrap_err();
    assert_eq!(refused, EventError::TooManyWorkers { workers: 3, max: 2 });
    assert_eq!(refused.to_string(), "worker is number 3, expected at most 2 (`max_workers`)");
}

#[test]
fn predictions_count_until_they_die_and_are_reported_apart() {
    let predicted = PredictedConfig { life: 10, resolution: 5, max_blocks: 1000 };
    let index = Index::new(IndexConfig { predicted, ..IndexConfig::default() });
    assert!(!index.predict(A, &hashes("abc"), Tick(100)), "an unknown worker expects nothing");
    let _ = index.say(A, &stored("", "ab"));
    assert!(index.predict(A, &hashes("abcd"), Tick(100)));
    let held = |now| index.overlap(&hashes("abcdef"), Tick(now)).of(A);
    assert_eq!((held(100).device, held(100).predicted, held(100).expected()), (2, 4, 4));
    assert_eq!((held(109).predicted, held(110).predicted, held(110).expected()), (4, 0, 2));
    // Placed at 103 it may die at 110 already, never after 113.
    assert!(index.predict(A, &hashes("abc"), Tick(103)));
    assert_eq!(held(109).predicted, 4);
    assert!(index.predict(A, &hashes("ab"), Tick(112)));
    assert_eq!((held(112).predicted, index.stats().predicted_blocks), (2, 2));
    let _ = index.forget(A);
    assert_eq!((held(112).predicted, index.stats().predicted_blocks), (0, 0));
}

#[test]
fn predictions_that_no_event_will_confirm_may_live_longer() {
    let predicted = PredictedConfig { life: 4, resolution: 2, max_blocks: 1000 };
    let index = Index::new(IndexConfig { predicted, ..IndexConfig::default() });
    index.register(A).unwrap();
    index.register(B).unwrap();
    assert!(index.predict_for(A, &hashes("abcd"), Tick(100), Some(120)));
    assert!(index.predict(B, &hashes("ab"), Tick(100)));
    let held = |worker, now| index.overlap(&hashes("abcd"), Tick(now)).of(worker).predicted;
    assert_eq!((held(A, 103), held(B, 103)), (4, 2));
    assert_eq!((held(A, 150), held(B, 150)), (4, 0));
    assert_eq!(held(A, 220), 0, "never late");
    // Shorter lives go on beside it.
    assert!(index.predict(B, &hashes("abc"), Tick(150)));
    assert_eq!((held(A, 151), held(B, 151), index.stats().predicted_blocks), (4, 3, 7));
}

#[test]
fn past_their_bound_the_oldest_predictions_go() {
    let predicted = PredictedConfig { life: 100, resolution: 10, max_blocks: 8 };
    let index = Index::new(IndexConfig { predicted, ..IndexConfig::default() });
    index.register(A).unwrap();
    for (prompt, now) in [("abcd", 0), ("wxyz", 20), ("mn", 40)] {
        assert!(index.predict(A, &hashes(prompt), Tick(now)));
    }
    let predicted = |prompt: &str| index.overlap(&hashes(prompt), Tick(41)).of(A).predicted;
    assert_eq!((predicted("abcd"), predicted("wxyz"), predicted("mn")), (0, 4, 2));
    let stats = index.stats();
    assert_eq!((stats.predicted_blocks, stats.dropped_predictions_total), (6, 4));
}

#[test]
fn a_worker_that_stays_while_others_come_and_go_costs_nothing_more() {
    let index = index();
    let _ = index.say(A, &stored("", "sss"));
    let cycle = |n: usize| {
        let (old, new) = (["x", "y"][n % 2], ["x", "y"][(n + 1) % 2]);
        let _ = index.apply(B, &stored("", &format!("sss{new}q")), Tick(1)).unwrap();
        let _ = index.apply(B, &removed(&[&format!("sss{old}q"), &format!("sss{old}")]), Tick(1)).unwrap();
    };
    (0..200).for_each(cycle);
    let bytes = index.bytes();
    (0..20_000).for_each(cycle);
    index.check();
    assert!(index.bytes() <= bytes + 4096, "{} bytes, {bytes} before", index.bytes());
    assert_eq!(index.depth(A, "sss"), 3);
}

#[test]
fn filling_and_emptying_the_last_place_costs_nothing_more() {
    let index = index();
    for root in 0..63 {
        let _ = index.say(A, &stored("", &char::from(b'0' + root).to_string()));
    }
    let cycle = |_| {
        let _ = index.apply(A, &stored("", "~"), Tick(1)).unwrap();
        let _ = index.apply(A, &removed(&["~"]), Tick(1)).unwrap();
    };
    (0..10).for_each(cycle);
    let bytes = index.bytes();
    (0..10_000).for_each(cycle);
    assert_eq!(index.bytes(), bytes);
}

#[test]
fn one_hash_at_two_depths_is_two_blocks() {
    // A publisher that sends a sequence hash where a block hash belongs makes a hash stand at two depths.
    let index = index();
    let path = hashes("ab");
    let block = |id: u64, hash: u64| StoredBlock { id: EngineBlockId::from(id), hash: BlockHash(hash) };
    let (tier, parent) = (Tier::Device, None);
    let root = |blocks| KvEvent::Stored { tier, parent, blocks };
    let _ = index.say(A, &stored("", "ab"));
    let _ = index.say(A, &stored("a", "c"));
    let _ = index.say(B, &root(vec![block(1, path[1].0)]));
    let _ = index.say(B, &root(vec![block(2, path[1].0), block(3, 7)]));
    let overlap = index.overlap(&path, Tick(1));
    assert_eq!((overlap.of(A).device, overlap.of(B).device), (2, 0));
    assert_eq!(index.overlap(&path[1..], Tick(1)).of(B).device, 1);
    // The other way round: the root is there before a node is cut at that hash.
    let index = self::index();
    let _ = index.say(B, &root(vec![block(1, path[1].0)]));
    let _ = index.say(A, &stored("", "ab"));
    let _ = index.say(A, &stored("a", "c"));
    let _ = index.say(A, &removed(&["ac"]));
    let _ = index.say(B, &KvEvent::Cleared { tier: None });
    assert_eq!((index.depth(A, "ab"), index.nodes()), (2, 1));
    assert!(index.predict(A, &[SequenceHash(5), SequenceHash(5)], Tick(1)));
    assert!(index.predict(A, &[SequenceHash(5), SequenceHash(6)], Tick(1)));
    assert_eq!(index.overlap(&[SequenceHash(5), SequenceHash(5)], Tick(1)).of(A).predicted, 2);
}

#[test]
fn an_answer_can_be_used_with_one_index_and_then_another() {
    let (one, other) = (index(), index());
    let _ = one.say(A, &stored("", "ab"));
    let _ = other.say(B, &stored("", "a"));
    let mut overlap = one.overlap(&hashes("ab"), Tick(1));
    other.overlap_into(&hashes("ab"), Tick(1), &mut overlap);
    assert_eq!((overlap.of(A).device, overlap.of(B).device), (0, 1));
}

#[test]
fn a_parent_is_looked_for_on_the_events_own_tier_first() {
    let index = index();
    let block =
        |id: u64, letter: u8| StoredBlock { id: EngineBlockId::from(id), hash: BlockHash(u64::from(letter)) };
    let store = |tier, parent: Option<u64>, id, letter| KvEvent::Stored {
        tier,
        parent: parent.map(EngineBlockId::from),
        blocks: vec![block(id, letter)],
    };
    // Host and device give one name to different blocks.
    let _ = index.say(A, &store(Tier::Device, None, 1, b'a'));
    let _ = index.say(A, &store(Tier::Host, None, 1, b'x'));
    let _ = index.say(A, &store(Tier::Device, Some(1), 2, b'b'));
    let _ = index.say(A, &store(Tier::Host, Some(1), 3, b'y'));
    let held = |prompt: &str| index.overlap(&hashes(prompt), Tick(1)).of(A);
    assert_eq!((held("ab").device, held("xy").device, held("xy").host), (2, 0, 2));
}

#[test]
fn names_can_be_asked_for() {
    let index = index();
    let _ = index.say(A, &stored("", "ab"));
    assert!(index.holds(A, id("ab")) && !index.holds(A, id("abc")) && !index.holds(B, id("ab")));
}

mod budget;
