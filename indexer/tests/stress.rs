//! Many threads at once, and every answer held against the history.
//!
//! Each writer owns one worker and applies a scripted list of events; the depth every prompt has after each
//! event is known beforehand. A reader notes how far each writer was before its lookup and how far after, and
//! the answer must lie between the least and the greatest depth of that stretch: above would be an
//! over-count, below would be a block lost to another thread's restructuring.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use kvlane_indexer::{
    BlockHash, EngineBlockId, Index, IndexConfig, KvEvent, Overlap, SequenceHash, StoredBlock, Tick, Tier,
    WorkerId,
};

const WRITERS: usize = 3;
const READERS: usize = 3;
const STEPS: usize = 30_000;
const LENGTH: usize = 24;

/// A small linear congruential generator: the test needs repeatable, not good, randomness.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// Prompts share prefixes of many lengths, so that writers cut and join each other's nodes.
fn prompts() -> Vec<Vec<u64>> {
    let mut random = Random(5);
    let mut prompts: Vec<Vec<u64>> = vec![(0..LENGTH as u64).collect()];
    for n in 1..12 {
        let of = random.below(prompts.len());
        let shared = random.below(LENGTH);
        let mut prompt = prompts[of][..shared].to_vec();
        prompt.extend((shared..LENGTH).map(|at| 1000 * n + at as u64));
        prompts.push(prompt);
    }
    prompts
}

fn hashes(prompt: &[u64]) -> Vec<SequenceHash> {
    SequenceHash::chain(None, prompt.iter().map(|block| BlockHash(*block))).collect()
}

/// One worker's events, and after each of them (and before the first) the depth of every prompt.
struct Script {
    events: Vec<KvEvent>,
    depths: Vec<Vec<u32>>,
}

fn script(writer: usize, prompts: &[Vec<u64>]) -> Script {
    let mut random = Random(100 + writer as u64);
    let paths: Vec<_> = prompts.iter().map(|prompt| hashes(prompt)).collect();
    let mut held = std::collections::HashSet::new();
    let depth = |held: &std::collections::HashSet<SequenceHash>, path: &[SequenceHash]| {
        path.iter().take_while(|hash| held.contains(hash)).count() as u32
    };
    let all = |held: &_| paths.iter().map(|path| depth(held, path)).collect::<Vec<_>>();
    let id = |hash: SequenceHash| EngineBlockId::from(hash.0);
    let mut script = Script { events: Vec::new(), depths: vec![all(&held)] };
    while script.events.len() < STEPS {
        let n = random.below(prompts.len());
        let (prompt, path) = (&prompts[n], &paths[n]);
        let event = if random.below(5) < 3 {
            // A stretch whose beginning follows a held block, or the root.
            let from = random.below(LENGTH);
            if from > 0 && !held.contains(&path[from - 1]) {
                continue;
            }
            let to = (from + 1 + random.below(8)).min(LENGTH);
            held.extend(&path[from..to]);
            let block = |at| StoredBlock { id: id(path[at]), hash: BlockHash(prompt[at]) };
            let parent = from.checked_sub(1).map(|at| id(path[at]));
            KvEvent::Stored { tier: Tier::Device, parent, blocks: (from..to).map(block).collect() }
        } else {
            let from = random.below(LENGTH);
            let to = (from + 1 + random.below(4)).min(LENGTH);
            held.retain(|hash| !path[from..to].contains(hash));
            KvEvent::Removed {
                tier: Tier::Device,
                ids: path[from..to].iter().map(|hash| id(*hash)).collect(),
            }
        };
        script.events.push(event);
        script.depths.push(all(&held));
    }
    script
}

#[test]
fn every_answer_is_one_the_history_allows() {
    let prompts = prompts();
    let paths: Vec<_> = prompts.iter().map(|prompt| hashes(prompt)).collect();
    let scripts: Vec<_> = (0..WRITERS).map(|writer| script(writer, &prompts)).collect();
    let worker = |writer: usize| WorkerId::new(writer as u64, 0);
    let index = Index::new(IndexConfig { shards: 16, ..IndexConfig::default() });
    (0..WRITERS).for_each(|writer| index.register(worker(writer)).unwrap());

    let begun: Vec<_> = (0..WRITERS).map(|_| AtomicUsize::new(0)).collect();
    let done: Vec<_> = (0..WRITERS).map(|_| AtomicUsize::new(0)).collect();
    let finished = AtomicBool::new(false);
    let answers = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (index, script, begun, done) = (&index, &scripts[writer], &begun, &done);
                scope.spawn(move || {
                    for (step, event) in script.events.iter().enumerate() {
                        begun[writer].store(step + 1, Ordering::SeqCst);
                        let _ = index.apply(worker(writer), event, Tick(1)).unwrap();
                        done[writer].store(step + 1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        // A visitor comes and goes, so that slots and the directory change under the readers.
        let visitor = scope.spawn(|| {
            let (id, hash) = (EngineBlockId::from(1_u64), BlockHash(prompts[0][0]));
            let event =
                KvEvent::Stored { tier: Tier::Device, parent: None, blocks: vec![StoredBlock { id, hash }] };
            for visit in 0.. {
                if finished.load(Ordering::SeqCst) {
                    return;
                }
                let visitor = WorkerId::new(100 + visit % 5, 0);
                let _ = index.apply(visitor, &event, Tick(1)).unwrap();
                assert!(index.overlap(&paths[0], Tick(1)).of(visitor).device <= 1);
                assert!(index.forget(visitor));
            }
        });
        for reader in 0..READERS {
            let (index, scripts, paths) = (&index, &scripts, &paths);
            let (begun, done, finished, answers) = (&begun, &done, &finished, &answers);
            scope.spawn(move || {
                let mut random = Random(reader as u64);
                let mut overlap = Overlap::default();
                while !finished.load(Ordering::SeqCst) {
                    let n = random.below(paths.len());
                    let before: Vec<_> = done.iter().map(|step| step.load(Ordering::SeqCst)).collect();
                    index.overlap_into(&paths[n], Tick(1), &mut overlap);
                    for writer in 0..WRITERS {
                        let after = begun[writer].load(Ordering::SeqCst);
                        let stretch = scripts[writer].depths[before[writer]..=after].iter().map(|all| all[n]);
                        let (least, most) = (stretch.clone().min().unwrap(), stretch.max().unwrap());
                        let answer = overlap.of(worker(writer)).device;
                        assert!(
                            (least..=most).contains(&answer),
                            "worker {writer}, prompt {n}: {answer} is not in {least}..={most}, steps {}..={after}",
                            before[writer],
                        );
                    }
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        finished.store(true, Ordering::SeqCst);
        visitor.join().unwrap();
    });
    assert!(answers.load(Ordering::Relaxed) > 100);
    #[cfg(debug_assertions)]
    index.check();
    // At rest, everything is exact.
    for (n, path) in paths.iter().enumerate() {
        let overlap = index.overlap(path, Tick(1));
        for (writer, script) in scripts.iter().enumerate() {
            assert_eq!(overlap.of(worker(writer)).device, script.depths[STEPS][n]);
        }
    }
}
