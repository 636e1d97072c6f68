use std::sync::Arc;

use kvlane_engine_adapters::model::ChatPrompt;
use serde_json::json;

use super::*;
use crate::openai::Endpoint;

fn preprocessor() -> Preprocessor {
    Preprocessor::new(Pool::new(2, 1 << 16, 16), 1 << 20, ClientTls::system())
}

fn embedded() -> Words {
    Words::Local { model: Arc::new(Model::embedded().unwrap()), id: 0 }
}

fn blocks() -> Blocks {
    Blocks { size: BlockSize::new(16).unwrap(), lora_name: None }
}

fn request(endpoint: Endpoint, body: &Value) -> Arc<ClientRequest> {
    Arc::new(ClientRequest::read(endpoint, body.to_string().into()).unwrap())
}

fn chat(turns: usize) -> Value {
    let turn = |n: usize| {
        let role = if n.is_multiple_of(2) { "user" } else { "assistant" };
        json!({"role": role, "content": format!("turn {n}: {}", "some words about caches ".repeat(20))})
    };
    json!({ "messages": (0..turns).map(turn).collect::<Vec<_>>() })
}

#[tokio::test]
async fn the_next_turn_pays_only_for_its_own_messages() {
    let (preprocessor, words) = (preprocessor(), embedded());
    let mut before: Option<Prompt> = None;
    for turns in [1, 3, 5] {
        let stats = preprocessor.cache_stats();
        let prompt = preprocessor
            .prompt(&request(Endpoint::Chat, &chat(turns)), &words, &blocks(), None, 0)
            .await
            .unwrap();
        let now = preprocessor.cache_stats();
        if let Some(before) = before {
            let new = (now.uncached_tokens - stats.uncached_tokens) as usize;
            assert!(new < prompt.tokens - before.tokens + 8, "{new} of {} tokens", prompt.tokens);
            assert_eq!(prompt.blocks[..before.blocks.len() - 1], before.blocks[..before.blocks.len() - 1]);
        }
        // The same tokens as without any cache.
        let Words::Local { model, .. } = &words else { panic!() };
        let messages = chat(turns)["messages"].as_array().unwrap().clone();
        let messages: Vec<_> = messages.iter().map(|message| message.as_object().unwrap().clone()).collect();
        let text = model.template.as_ref().unwrap().render(&ChatPrompt::new(&messages, 0)).unwrap();
        let tokens = model.tokenizer.encode(&text, false).unwrap();
        assert_eq!(prompt.tokens, tokens.len());
        let hashes = BlockHasher::new(blocks().size, Namespace::default()).sequence(&tokens);
        assert_eq!(*prompt.blocks, *hashes);
        before = Some(prompt);
    }
    assert!(preprocessor.cache_stats().bytes <= 1 << 20);
}

#[tokio::test]
async fn completions_are_texts_or_tokens() {
    let (preprocessor, words) = (preprocessor(), embedded());
    let prompt = async |prompt: Value| {
        let request = request(Endpoint::Completions, &json!({ "prompt": prompt }));
        preprocessor.prompt(&request, &words, &blocks(), None, 0).await.unwrap()
    };
    let text = "words and words ".repeat(30);
    let by_text = prompt(json!(text)).await;
    let Words::Local { model, .. } = &words else { panic!() };
    let tokens = model.tokenizer.encode(&text, true).unwrap();
    let by_tokens = prompt(json!(tokens)).await;
    assert_eq!((by_text.tokens, &by_text.blocks), (by_tokens.tokens, &by_tokens.blocks));
    assert_eq!(prompt(json!([text])).await.blocks, by_text.blocks);
    assert_eq!(prompt(json!([tokens, tokens])).await.tokens, 2 * by_tokens.tokens);
    assert_eq!(prompt(json!([])).await.tokens, 0);
}

#[tokio::test]
async fn adapters_and_salts_have_blocks_of_their_own() {
    let (preprocessor, words) = (preprocessor(), embedded());
    let prompt = async |salt: Option<&str>, lora: Option<&str>| {
        let mut body = chat(3);
        body["cache_salt"] = json!(salt);
        let blocks = Blocks { lora_name: lora.map(str::to_owned), ..blocks() };
        preprocessor.prompt(&request(Endpoint::Chat, &body), &words, &blocks, None, 0).await.unwrap().blocks
    };
    let plain = prompt(None, None).await;
    assert!(plain.len() > 3);
    for (salt, lora) in [(Some("s"), None), (None, Some("a")), (Some("s"), Some("a"))] {
        assert_ne!(prompt(salt, lora).await[0], plain[0]);
    }
}

#[tokio::test]
async fn without_a_tokenizer_text_stands_for_tokens() {
    let preprocessor = preprocessor();
    let of = async |body: Value| {
        let request = request(Endpoint::Chat, &body);
        preprocessor.prompt(&request, &Words::Text, &blocks(), None, 0).await.unwrap()
    };
    let (short, long) = (of(chat(3)).await, of(chat(5)).await);
    assert!(!short.exact && short.blocks.len() > 10);
    assert_eq!(long.blocks[..short.blocks.len()], *short.blocks, "a longer chat goes on where it was");
    // An engine that cannot be asked leaves the same.
    let request = request(Endpoint::Chat, &chat(3));
    let asked = preprocessor.prompt(&request, &Words::Engine, &blocks(), Some("http://127.0.0.1:9"), 0).await;
    assert_eq!(asked.unwrap().blocks, short.blocks);
}

/// Media, or a template that refuses: the engine has the last word.
#[tokio::test]
async fn a_prompt_that_cannot_be_rendered_is_still_a_request() {
    let body = json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]});
    let prompt = preprocessor()
        .prompt(&request(Endpoint::Chat, &body), &embedded(), &blocks(), None, 0)
        .await
        .unwrap();
    assert!(prompt.blocks.is_empty() && !prompt.exact && prompt.tokens > 0);
}
