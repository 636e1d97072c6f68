//! The index: events in, answers out.
//!
//! Timed: `Index::apply` of a whole history (per block, the removals that drain it included), and
//! `Index::overlap_into` of one prompt. Not timed: making events and prompts. The sizes that matter are 256
//! workers and a prompt of 169 blocks.

use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BatchSize, BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use fixtures::{Workload, apply, block_count, index, multi_turn, trace, trace_requests};
use kvlane_indexer::{Overlap, Tick};

fn overlap(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, workload: &Workload) {
    let index = index();
    apply(&index, &workload.history);
    let mut answer = Overlap::default();
    let mut prompts = workload.prompts.iter().cycle();
    group.throughput(Throughput::Elements(1));
    group.bench_function(format!("overlap, {name}"), |bencher| {
        bencher.iter(|| {
            if let Some(prompt) = prompts.next() {
                index.overlap_into(black_box(&prompt.hashes), Tick(1), &mut answer);
            }
            black_box(answer.device().len())
        });
    });
}

fn events(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, workload: &Workload) {
    let blocks = block_count(&workload.history) + block_count(&workload.drain);
    group.throughput(Throughput::Elements(blocks as u64));
    group.bench_function(format!("apply and drain, {name}"), |bencher| {
        bencher.iter_batched(
            index,
            |index| {
                apply(&index, &workload.history);
                apply(&index, &workload.drain);
                assert_eq!(index.stats().nodes, 0, "drained means empty");
            },
            BatchSize::PerIteration,
        );
    });
}

fn benches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("multi-turn");
    group.sample_size(20).measurement_time(Duration::from_secs(3));
    for workers in [4, 64, 256] {
        let workload = multi_turn(workers);
        overlap(&mut group, &format!("{workers} workers"), &workload);
        events(&mut group, &format!("{workers} workers"), &workload);
    }
    group.finish();

    let (name, requests) = trace_requests(2000);
    let mut group = criterion.benchmark_group(name);
    group.sample_size(10).measurement_time(Duration::from_secs(3));
    for workers in [8, 64] {
        let workload = trace(&requests, workers);
        overlap(&mut group, &format!("{workers} workers"), &workload);
        events(&mut group, &format!("{workers} workers"), &workload);
    }
}

criterion_group!(group, benches);
criterion_main!(group);
