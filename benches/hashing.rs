//! Tokens into sequence hashes.
//!
//! Timed: hashing a prompt that lies in memory as token ids. Not timed: making it. The size that matters is
//! an 8k-token prompt; "next turn" has the hashes of all but its last 200 tokens already.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kvlane_indexer::{BlockHasher, BlockSize, Namespace};

fn hashing(criterion: &mut Criterion) {
    let tokens: Vec<u32> = (0..8192).map(|n| n * 2_654_435_761_u32 % 128_000).collect();
    let mut group = criterion.benchmark_group("hash an 8k-token prompt");
    group.throughput(Throughput::Elements(tokens.len() as u64));
    for size in [16, 32, 64, 128] {
        let block_size = BlockSize::new(size).expect("not zero");
        let hasher = BlockHasher::new(block_size, Namespace::default());
        let mut hashes = Vec::new();
        group.bench_function(format!("blocks of {size}"), |bencher| {
            bencher.iter(|| {
                hashes.clear();
                hasher.extend(black_box(&tokens), &mut hashes);
                black_box(hashes.len())
            });
        });
        let known = hasher.block_count(tokens.len() - 200);
        group.bench_function(format!("blocks of {size}, next turn"), |bencher| {
            bencher.iter(|| {
                hashes.truncate(known);
                hasher.extend(black_box(&tokens), &mut hashes);
                black_box(hashes.len())
            });
        });
    }
}

criterion_group!(benches, hashing);
criterion_main!(benches);
