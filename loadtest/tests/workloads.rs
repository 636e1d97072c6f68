//! What is asked, through the whole path: brokered questions, groups, prompts, traces, a corpus in a bucket.

use std::time::Duration;

use crate::common::{collector, conversations, endpoint, engine, load_of, nowhere, until};
use kvlane_loadtest::arrivals::{Arrivals, Ramp};
use kvlane_loadtest::broker::Broker;
use kvlane_loadtest::corpus::Corpus;
use kvlane_loadtest::trace::{HASH_TOKENS, Recipe, make};
use kvlane_loadtest::workload::{Conversations, Groups, Pool, Replay, Workload, read_prompts};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_asks_on_and_questions_are_made_offline_where_it_fails() {
    let (worker, small) = (engine(50.0).await, engine(50.0).await);
    let url = format!("http://{}", worker.address());
    for (broker, fails) in [(format!("http://{}", small.address()), false), (nowhere().await, true)] {
        let collector = collector();
        let broker = Some(Broker::new(endpoint(&broker)));
        let workload = Workload::Conversations(Box::new(Conversations { broker, ..conversations() }));
        let running = load_of(workload, &url, &collector).start(Arrivals::Closed(Ramp::flat(2.0)));
        until("conversations over", || collector.report().conversations.completed >= 3).await;
        let report = running.broker().unwrap();
        running.stop(Duration::from_secs(5)).await;
        assert!(report.asked >= 6, "{report:?}");
        assert_eq!(report.failed > 0, fails, "{report:?}");
        assert!(collector.report().all.errors.is_empty());
    }
}

/// Prompts of a group are found cached as far as they are shared, by an engine that counts.
#[tokio::test(flavor = "multi_thread")]
async fn groups_share_what_they_should() {
    let worker = engine(50.0).await;
    let url = format!("http://{}", worker.address());
    let per_word = endpoint(&url).tokens_per_word().await.unwrap();
    assert!((0.8..4.0).contains(&per_word), "{per_word}");
    let words = (2000.0 / per_word) as usize;
    let groups = Groups { count: 2, words: (words, words), ratio: 0.8, zipf: 0.0 };
    let pool = Pool::groups(groups, 4);
    let workload =
        Workload::Conversations(Box::new(Conversations { pool, turns: (1, 1), ..conversations() }));
    let collector = collector();
    let running = load_of(workload, &url, &collector).start(Arrivals::Closed(Ramp::flat(1.0)));
    until("forty requests", || collector.report().all.requests >= 40).await;
    running.stop(Duration::from_secs(5)).await;
    let warm: Vec<_> = collector.latest().into_iter().skip(10).map(|record| record.measured).collect();
    let sum = |of: fn(&kvlane_loadtest::measure::Measured) -> Option<u64>| {
        warm.iter().filter_map(of).sum::<u64>() as f64
    };
    let (cached, prompt) = (sum(|of| of.cached_tokens), sum(|of| of.prompt_tokens));
    assert!((0.7..0.85).contains(&(cached / prompt)), "{}", cached / prompt);
    let mean = prompt / warm.len() as f64;
    assert!((mean / 2000.0 - 1.0).abs() < 0.12, "{mean} tokens, asked for 2000");
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_of_a_file_and_requests_of_a_trace_are_asked() {
    let worker = engine(50.0).await;
    let url = format!("http://{}", worker.address());
    let path = std::env::temp_dir().join(format!("kvlane-live-prompts-{}.jsonl", std::process::id()));
    std::fs::write(
        &path,
        "What is a block?\n{\"prompt\": \"And a tree?\", \"max_tokens\": 3, \"topic\": \"trees\"}\n",
    )
    .unwrap();
    let prompts = read_prompts(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    let asked = collector();
    let workload = Workload::Prompts { prompts, max_tokens: 8 };
    let running = load_of(workload, &url, &asked).start(Arrivals::Closed(Ramp::flat(1.0)));
    until("six requests", || asked.report().all.requests >= 6).await;
    running.stop(Duration::from_secs(5)).await;
    let records = asked.latest();
    assert!(records.iter().all(|record| record.turn == 1));
    let trees: Vec<_> = records.iter().filter(|record| &*record.topic == "trees").collect();
    assert!(trees.len() >= 3 && trees.iter().all(|record| record.measured.output_tokens <= 3));

    let recipe = Recipe {
        requests: 30,
        conversations_per_s: 5.0,
        turns: (2, 3),
        groups: 2,
        zipf: 0.0,
        prompt_tokens: (1500, 2500),
        shared: 0.7,
        output_tokens: (4, 12),
        think_s: 0.5,
        seed: 2,
    };
    let trace = make(&recipe);
    let tokens: usize = trace.requests.iter().map(|request| request.input_length).sum();
    let per_word = endpoint(&url).tokens_per_word().await.unwrap();
    let replay = Replay::new(trace, HASH_TOKENS, per_word, 1024);
    let moments = replay.moments(4.0);
    let replayed = collector();
    let running =
        load_of(Workload::Replay(replay), &url, &replayed).start(Arrivals::Scheduled { moments, most: 100 });
    tokio::time::timeout(Duration::from_secs(60), running.over()).await.expect("a trace that ends");
    let report = replayed.report();
    assert_eq!((report.all.requests, report.all.errors.len()), (30, 0), "{:?}", report.complaints);
    let asked = report.all.prompt_tokens.unwrap() * 30.0;
    assert!((asked / tokens as f64 - 1.0).abs() < 0.15, "{asked} tokens, the trace has {tokens}");
    assert!(report.all.cached_share.unwrap() > 0.3, "{:?}", report.all.cached_share);
    assert!(running.set(kvlane_loadtest::live::Level::Rate(1.0)).is_err(), "a schedule is what it is");
}

/// A bucket with three objects on two pages, one of which is no text.
#[tokio::test]
async fn a_corpus_may_lie_in_a_bucket() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).await.unwrap_or(0);
            let line =
                String::from_utf8_lossy(&request[..read]).lines().next().unwrap_or_default().to_owned();
            let path = line.split(' ').nth(1).unwrap_or_default();
            let (status, body) = match path {
                "/?list-type=2&prefix=docs/" => (
                    200,
                    "<ListBucketResult><Contents><Key>docs/a one.md</Key></Contents><Contents><Key>docs/x.png</Key></Contents><NextContinuationToken>t=1</NextContinuationToken></ListBucketResult>",
                ),
                "/?list-type=2&prefix=docs/&continuation-token=t%3D1" => {
                    (200, "<ListBucketResult><Contents><Key>docs/b.txt</Key></Contents></ListBucketResult>")
                }
                "/docs/a%20one.md" => (200, "first"),
                "/docs/b.txt" => (200, "second"),
                "/?list-type=2&prefix=empty" => (200, "<ListBucketResult></ListBucketResult>"),
                "/?list-type=2&prefix=page" => (200, "<html>"),
                _ => (403, "<Error>denied</Error>"),
            };
            let answer = format!(
                "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    let corpus = Corpus::open(&format!("{base}/docs/")).await.unwrap();
    let found: Vec<(&str, &str)> =
        corpus.documents.iter().map(|of| (of.topic.as_str(), of.text.as_str())).collect();
    assert_eq!(found, [("a one", "first"), ("b", "second")]);
    for (place, says) in
        [("empty", "no .txt or .md object"), ("page", "is no listing"), ("secret", "status 403")]
    {
        let refused = format!("{:#}", Corpus::open(&format!("{base}/{place}")).await.unwrap_err());
        assert!(refused.contains(says), "{refused}");
    }
}
