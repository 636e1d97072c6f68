//! Chat templates and tokenizers in the style of Llama 3, Qwen and Mistral: what is rendered and tokenized here is what
//! Python's `transformers` makes of it, recorded in `fixtures/templates` (see its `make.py`).

use std::path::Path;

use kvlane_engine_adapters::model::{ChatPrompt, Model, TemplateError};
use kvlane_indexer::TokenId;
use serde_json::{Map, Value};

fn model(name: &str) -> (Model, Value) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/templates").join(name);
    let golden = std::fs::read_to_string(dir.join("golden.json")).unwrap();
    (Model::load(&dir).unwrap(), serde_json::from_str(&golden).unwrap())
}

fn tokens(value: &Value) -> Vec<TokenId> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as TokenId).collect()
}

fn check(name: &str) {
    let (model, golden) = model(name);
    let template = model.template.as_ref().unwrap();
    for case in golden["chats"].as_array().unwrap() {
        let messages: Vec<Map<String, Value>> = case["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|message| message.as_object().unwrap().clone())
            .collect();
        let prompt = ChatPrompt {
            tools: case["tools"].as_array().map(Vec::as_slice),
            add_generation_prompt: case["generate"].as_bool().unwrap_or(true),
            variables: case["kwargs"].as_object(),
            ..ChatPrompt::new(&messages, 1_700_000_000)
        };
        match (template.render(&prompt), case["error"].as_str()) {
            (Ok(text), None) => {
                assert_eq!(text, case["text"].as_str().unwrap(), "{name}: {}", case["messages"]);
                let expected = tokens(&case["tokens"]);
                assert_eq!(model.tokenizer.encode(&text, false).unwrap(), expected, "{name}: {text:?}");
                // In pieces, as a router caches them.
                let pieces: Vec<&str> = model.tokenizer.pieces(&text).collect();
                let apart = pieces.iter().flat_map(|piece| model.tokenizer.encode(piece, false).unwrap());
                assert_eq!(apart.collect::<Vec<_>>(), expected, "{name}: {pieces:?}");
                assert!(pieces.len() > 1, "{name}: {text:?} does not fall apart");
            }
            (Err(TemplateError::Refused(said)), Some(error)) => assert_eq!(said, error),
            (rendered, expected) => panic!("{name}: {rendered:?}, expected {expected:?}"),
        }
    }
    for case in golden["texts"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        assert_eq!(model.tokenizer.encode(text, true).unwrap(), tokens(&case["tokens"]), "{name}: {text:?}");
    }
}

#[test]
fn llama_3_style() {
    check("llama");
}

#[test]
fn qwen_style() {
    check("qwen");
}

#[test]
fn mistral_style() {
    check("mistral");
}
