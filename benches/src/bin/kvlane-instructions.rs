//! Does one thing so many times, to be counted under callgrind: `kvlane-instructions decision 100`.
//!
//! What a single act takes is the difference between two runs over the difference of their counts; making everything ready
//! is in both.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line program")]

use std::hint::black_box;
use std::process::ExitCode;

use bytes::Bytes;
use fixtures::path::{PathCase, chat, chunk};
use kvlane_engine_adapters::model::Model;
use kvlane_router::openai::{ClientRequest, Endpoint};
use kvlane_router::proxy::SseWatch;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_default();
    let times = arguments.next().and_then(|times| times.parse::<usize>().ok());
    let Some(times) = times else {
        eprintln!("kvlane-instructions: expected decision, relay, tokenize or read, and a number");
        return ExitCode::from(2);
    };
    let done = match what.as_str() {
        "decision" => {
            let case = PathCase::new(8000, 256);
            (0..times).filter(|_| black_box(case.decide()).is_some()).count()
        }
        "relay" => {
            let (mut watch, chunk) = (SseWatch::new(true), Bytes::from(chunk(" of")));
            (0..times).filter(|_| !watch.feed(black_box(chunk.clone())).is_empty()).count()
        }
        "tokenize" => {
            let Ok(model) = Model::embedded() else { return ExitCode::FAILURE };
            let text = chat(8000)[0]["content"].as_str().unwrap_or_default().to_owned();
            (0..times).filter(|_| model.tokenizer.encode(black_box(&text), false).is_ok()).count()
        }
        "read" => {
            let body = serde_json::json!({"model": "m", "stream": true, "messages": chat(8000)});
            let body = Bytes::from(body.to_string());
            let read = |_: &usize| ClientRequest::read(Endpoint::Chat, black_box(body.clone())).is_ok();
            (0..times).filter(read).count()
        }
        _ => 0,
    };
    println!("{what}: {done}");
    if done == times { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
