//! The bytes of a KV event batch.
//!
//! A batch is a msgpack array `[timestamp, events, data parallel rank]`. An event is a map with its kind under
//! `type` since vLLM 0.24, and an array that begins with its kind up to 0.23. Integers take their shortest
//! form, as vLLM's own encoder writes them.

use kvlane_indexer::TokenId;
use rmp::encode::{self, ByteBuf};
use xxhash_rust::xxh3::xxh3_128;

/// How vLLM of a version spells its events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spelling {
    /// 0.24 and later.
    #[default]
    Maps,
    /// 0.22 and 0.23.
    Arrays,
}

/// How blocks are named on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Naming {
    #[default]
    Ints,
    /// 32-byte digests whose last eight bytes are what [`Naming::Ints`] would say.
    Bytes,
}

/// One event as it goes out. Names are the engine's 64-bit ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutEvent<'a> {
    Stored {
        names: Vec<u64>,
        parent: Option<u64>,
        tokens: &'a [TokenId],
        block_tokens: usize,
        lora_name: Option<&'a str>,
        /// Goes with the first block of a prompt.
        cache_salt: Option<&'a str>,
        session_id: Option<&'a str>,
    },
    Removed {
        name: u64,
    },
    Cleared,
}

const MEDIUM: &str = "GPU";
const SPEC_KIND: &str = "full_attention";

/// Writes batches of one engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Encoder {
    pub spelling: Spelling,
    pub naming: Naming,
    pub data_parallel_rank: u32,
}

impl Encoder {
    pub fn batch(&self, seconds: f64, events: &[OutEvent<'_>]) -> Vec<u8> {
        let mut to = Writer { buffer: ByteBuf::new(), naming: self.naming };
        to.array(3);
        to.float(seconds);
        to.array(events.len());
        for event in events {
            match self.spelling {
                Spelling::Maps => to.event_as_map(event),
                Spelling::Arrays => to.event_as_array(event),
            }
        }
        to.int(u64::from(self.data_parallel_rank));
        to.buffer.into_vec()
    }
}

/// Writing into memory cannot fail, so results are dropped here and nowhere else.
struct Writer {
    buffer: ByteBuf,
    naming: Naming,
}

impl Writer {
    fn array(&mut self, len: usize) {
        let _ = encode::write_array_len(&mut self.buffer, len as u32);
    }

    fn map(&mut self, len: usize) {
        let _ = encode::write_map_len(&mut self.buffer, len as u32);
    }

    fn text(&mut self, text: &str) {
        let _ = encode::write_str(&mut self.buffer, text);
    }

    fn int(&mut self, value: u64) {
        let _ = encode::write_uint(&mut self.buffer, value);
    }

    fn float(&mut self, value: f64) {
        let _ = encode::write_f64(&mut self.buffer, value);
    }

    fn nil(&mut self) {
        let _ = encode::write_nil(&mut self.buffer);
    }

    fn name(&mut self, name: u64) {
        match self.naming {
            Naming::Ints => self.int(name),
            Naming::Bytes => {
                let _ = encode::write_bin(&mut self.buffer, &digest(name));
            }
        }
    }

    fn names(&mut self, names: &[u64]) {
        self.array(names.len());
        names.iter().for_each(|name| self.name(*name));
    }

    fn optional(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.text(text),
            None => self.nil(),
        }
    }

    fn parent(&mut self, parent: Option<u64>) {
        match parent {
            Some(parent) => self.name(parent),
            None => self.nil(),
        }
    }

    fn tokens(&mut self, tokens: &[TokenId]) {
        self.array(tokens.len());
        tokens.iter().for_each(|token| self.int(u64::from(*token)));
    }

    /// Per block what besides its tokens made it: the adapter on every one, the salt on a prompt's first.
    fn extra_keys(&mut self, blocks: usize, opens: bool, lora_name: Option<&str>, salt: Option<&str>) {
        self.array(blocks);
        for at in 0..blocks {
            let salt = salt.filter(|_| opens && at == 0);
            let keys = usize::from(lora_name.is_some()) + usize::from(salt.is_some());
            if keys == 0 {
                self.nil();
                continue;
            }
            self.array(keys);
            lora_name.into_iter().chain(salt).for_each(|key| self.text(key));
        }
    }

    fn event_as_map(&mut self, event: &OutEvent<'_>) {
        match event {
            OutEvent::Stored { names, parent, tokens, block_tokens, lora_name, cache_salt, session_id } => {
                self.map(11 + usize::from(session_id.is_some()));
                self.text("type");
                self.text("BlockStored");
                self.text("block_hashes");
                self.names(names);
                self.text("parent_block_hash");
                self.parent(*parent);
                self.text("token_ids");
                self.tokens(tokens);
                self.text("block_size");
                self.int(*block_tokens as u64);
                self.text("lora_id");
                self.nil();
                self.text("medium");
                self.text(MEDIUM);
                self.text("lora_name");
                self.optional(*lora_name);
                self.text("extra_keys");
                self.extra_keys(names.len(), parent.is_none(), *lora_name, *cache_salt);
                self.text("group_idx");
                self.int(0);
                self.text("kv_cache_spec_kind");
                self.text(SPEC_KIND);
                if let Some(session_id) = session_id {
                    self.text("session_id");
                    self.text(session_id);
                }
            }
            OutEvent::Removed { name } => {
                self.map(4);
                self.text("type");
                self.text("BlockRemoved");
                self.text("block_hashes");
                self.names(&[*name]);
                self.text("medium");
                self.text(MEDIUM);
                self.text("group_idx");
                self.int(0);
            }
            OutEvent::Cleared => {
                self.map(1);
                self.text("type");
                self.text("AllBlocksCleared");
            }
        }
    }

    fn event_as_array(&mut self, event: &OutEvent<'_>) {
        match event {
            OutEvent::Stored { names, parent, tokens, block_tokens, lora_name, cache_salt, .. } => {
                self.array(12);
                self.text("BlockStored");
                self.names(names);
                self.parent(*parent);
                self.tokens(tokens);
                self.int(*block_tokens as u64);
                self.nil();
                self.text(MEDIUM);
                self.optional(*lora_name);
                self.extra_keys(names.len(), parent.is_none(), *lora_name, *cache_salt);
                self.int(0);
                self.text(SPEC_KIND);
                self.nil();
            }
            OutEvent::Removed { name } => {
                self.array(4);
                self.text("BlockRemoved");
                self.names(&[*name]);
                self.text(MEDIUM);
                self.int(0);
            }
            OutEvent::Cleared => {
                self.array(1);
                self.text("AllBlocksCleared");
            }
        }
    }
}

/// A digest for a 64-bit name, which its last eight bytes are.
fn digest(name: u64) -> [u8; 32] {
    let name = name.to_be_bytes();
    let wide = xxh3_128(&name).to_be_bytes();
    let mut digest = [0; 32];
    digest[..16].copy_from_slice(&wide);
    digest[16..24].copy_from_slice(&wide[4..12]);
    digest[24..].copy_from_slice(&name);
    digest
}

#[cfg(test)]
mod tests;
