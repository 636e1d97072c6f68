//! One reader beside one writer: what does a lookup cost while events stream in?
//!
//! 64 workers with the multi-turn history applied. The reader times single lookups of 169-block prompts; the
//! writer, on another thread, takes conversations' last turns away and stores them again at 200,000 blocks a
//! second, twelve to an event. Five rounds, alone and beside the writer in turn; the round with the least
//! median counts for each. The clock's own cost is in both.

#![allow(clippy::print_stdout, reason = "prints its results")]
#![allow(clippy::disallowed_methods, reason = "a bench reads the real clock")]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fixtures::{CONVERSATIONS, Events, TURN_BLOCKS, Workload, apply, index, multi_turn};
use kvlane_indexer::{Index, Overlap, Tick};

const WORKERS: usize = 64;
const ROUNDS: usize = 5;
const LOOKUPS: usize = 200_000;
const BLOCKS_PER_SECOND: u64 = 200_000;

/// Lookup times in nanoseconds, ascending.
fn read(index: &Index, workload: &Workload) -> Vec<u64> {
    let mut overlap = Overlap::default();
    let prompts = workload.prompts.iter().cycle().take(LOOKUPS);
    let mut times: Vec<u64> = prompts
        .map(|prompt| {
            let start = Instant::now();
            index.overlap_into(black_box(&prompt.hashes), Tick(1), &mut overlap);
            black_box(overlap.device());
            start.elapsed().as_nanos() as u64
        })
        .collect();
    times.sort_unstable();
    times
}

/// Takes turns away and stores them again, one event at a time, never ahead of its pace.
fn write(index: &Index, last_turns: &[(Events, Events)], stop: &AtomicBool, written: &AtomicUsize) {
    let start = Instant::now();
    let pause = Duration::from_nanos(TURN_BLOCKS as u64 * 1_000_000_000 / BLOCKS_PER_SECOND);
    let mut due = start;
    for (stored, removed) in last_turns.iter().cycle() {
        for events in [removed, stored] {
            while Instant::now() < due {
                std::hint::spin_loop();
            }
            due += pause;
            apply(index, events);
            written.fetch_add(TURN_BLOCKS, Ordering::Relaxed);
        }
        if stop.load(Ordering::Relaxed) {
            return;
        }
    }
}

fn percentile(times: &[u64], percent: usize) -> u64 {
    times[(times.len() - 1) * percent / 100]
}

fn main() {
    let workload = multi_turn(WORKERS);
    let index = index();
    apply(&index, &workload.history);
    let conversations = CONVERSATIONS as usize;
    let stored = workload.history[workload.history.len() - conversations..].iter();
    // The drain starts with each worker's last event: pair every last turn with the event that undoes it.
    let undone = |stored: &(_, _)| {
        let (worker, event) = stored;
        workload.drain.iter().find(|(w, drained)| w == worker && fixtures::undoes(drained, event)).cloned()
    };
    let last_turns: Vec<(Events, Events)> =
        stored.take(400).filter_map(|stored| Some((vec![stored.clone()], vec![undone(stored)?]))).collect();
    assert_eq!(last_turns.len(), 400);

    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    let mut pace = 0.0_f64;
    for _ in 0..ROUNDS {
        alone.push(read(&index, &workload));
        let (stop, written) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| write(&index, &last_turns, &stop, &written));
            let start = Instant::now();
            beside.push(read(&index, &workload));
            pace = pace.max(written.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64());
            stop.store(true, Ordering::Relaxed);
        });
    }
    let best = |rounds: &[Vec<u64>]| {
        rounds.iter().map(|times| (percentile(times, 50), percentile(times, 99))).min().unwrap_or_default()
    };
    let (alone, beside) = (best(&alone), best(&beside));
    println!("| reader, {WORKERS} workers, 169-block prompts | p50 ns | p99 ns |");
    println!("|---|--:|--:|");
    println!("| alone | {} | {} |", alone.0, alone.1);
    println!("| beside a writer at {:.0} blocks/s | {} | {} |", pace, beside.0, beside.1);
    println!("| ratio | {:.2} | {:.2} |", beside.0 as f64 / alone.0 as f64, beside.1 as f64 / alone.1 as f64);
}
