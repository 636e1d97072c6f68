//! A request through template, tokenizer and hashing with the built-in model: however a text falls into pieces, and
//! whatever was seen before, its tokens and blocks are those of the whole text.
#![no_main]

use std::future::Future;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use kvlane_engine_adapters::model::Model;
use kvlane_engine_adapters::openai;
use kvlane_engine_adapters::tls::ClientTls;
use kvlane_indexer::{BlockHasher, BlockSize, Namespace};
use kvlane_router::openai::{ClientRequest, Endpoint};
use kvlane_router::preprocess::{Blocks, Pool, Preprocessor, Prompt, Words};
use libfuzzer_sys::fuzz_target;

static MODEL: LazyLock<Arc<Model>> = LazyLock::new(|| Arc::new(Model::embedded().unwrap()));
/// So small that pieces come and go.
static PREPROCESSOR: LazyLock<Preprocessor> =
    LazyLock::new(|| Preprocessor::new(Pool::new(1, 1 << 30, 16), 1 << 16, ClientTls::system()));

/// Longer requests would go to threads of their own.
const LONGEST: usize = 32 << 10;

/// Short ones are done at once.
fn now(request: &Arc<ClientRequest>, words: &Words) -> Prompt {
    let blocks = Blocks { size: BlockSize::new(4).unwrap(), lora_name: None };
    let made = PREPROCESSOR.prompt(request, words, &blocks, None, 1_700_000_000);
    match std::pin::pin!(made).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(made) => made.expect("nothing panicked"),
        Poll::Pending => panic!("it waits for somebody"),
    }
}

fn text_of(request: &ClientRequest) -> Option<(String, bool)> {
    let view = &request.view;
    if view.truncate_prompt_tokens.is_some() || view.ready_tokens().is_some() {
        return None;
    }
    if let Some(prompt) = view.chat_prompt(1_700_000_000) {
        let text = MODEL.template.as_ref()?.render(&prompt).ok()?;
        return Some((text, view.add_special_tokens == Some(true)));
    }
    match &view.prompt {
        Some(openai::Prompt::Text(text)) => Some((text.clone(), view.add_special_tokens.unwrap_or(true))),
        _ => None,
    }
}

fuzz_target!(|bytes: &[u8]| {
    if bytes.len() > LONGEST {
        return;
    }
    for endpoint in [Endpoint::Chat, Endpoint::Completions] {
        let Ok(request) = ClientRequest::read(endpoint, Bytes::copy_from_slice(bytes)) else { continue };
        let request = Arc::new(request);
        let words = Words::Local { model: MODEL.clone(), id: 0 };
        let prompt = now(&request, &words);
        assert_eq!(prompt.blocks, now(&request, &words).blocks, "seen before");
        let _ = now(&request, &Words::Text);
        let Some((text, mark)) = text_of(&request) else { continue };
        let tokens = MODEL.tokenizer.encode_whole(&text, mark).unwrap();
        assert_eq!((prompt.tokens, prompt.exact), (tokens.len(), true));
        let salt = request.view.cache_salt.as_deref();
        let hasher =
            BlockHasher::new(BlockSize::new(4).unwrap(), Namespace { lora_name: None, cache_salt: salt });
        assert_eq!(*prompt.blocks, *hasher.sequence(&tokens));
    }
});
