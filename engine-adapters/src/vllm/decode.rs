//! KV event batches of vLLM and SGLang, read: maps and arrays of every version there has been.
//!
//! Unknown fields are passed over and unknown kinds of event are counted, because engines add both with every
//! release. Block names are whatever the engine uses, integers of either sign or bytes.

use kvlane_indexer::{EngineBlockId, Tier, TokenId};

use crate::msgpack::{Int, Kind, MsgpackError, Reader};

/// What one step of an engine changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// When, in seconds since 1970.
    pub seconds: f64,
    pub rank: Option<u32>,
    pub events: Vec<Event>,
    /// Events of a kind not known here.
    pub unknown: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Stored(Stored),
    Removed { names: Vec<EngineBlockId>, place: Place },
    Cleared,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    pub names: Vec<EngineBlockId>,
    pub parent: Option<EngineBlockId>,
    pub tokens: Vec<TokenId>,
    /// Tokens came in pairs, as engines that draft with EAGLE heads send them.
    pub pairs: bool,
    pub block_tokens: u32,
    /// An adapter that is only known by number.
    pub lora_id: Option<i64>,
    pub lora_name: Option<String>,
    pub extra: Extra,
    pub place: Place,
}

/// What besides its tokens and the adapter makes a block what it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extra {
    /// Tells tenants apart; goes with the first block of a prompt.
    pub cache_salt: Option<String>,
    /// The first block that has something in it that is not tokens: an image, say.
    pub media_from: Option<usize>,
}

/// Where in the worker: which kind of memory, and which of a hybrid model's groups of layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// As the engine calls it.
    pub medium: Option<String>,
    pub group: Option<u32>,
    pub kind: Option<String>,
    /// Set when the block lies elsewhere or belongs to someone else.
    pub foreign: bool,
}

impl Place {
    /// The tier this medium is; none for one that is not known, or not here.
    pub fn tier(&self) -> Option<Tier> {
        if self.foreign {
            return None;
        }
        match self.medium.as_deref() {
            None | Some("" | "GPU" | "DEVICE") => Some(Tier::Device),
            Some("CPU" | "CPU_PINNED" | "CPU_TIER1") => Some(Tier::Host),
            Some(
                "CPU_TIER2" | "DISK" | "NVME" | "STORAGE" | "EXTERNAL" | "NETWORK" | "REMOTE" | "SHARED",
            ) => Some(Tier::Disk),
            Some(_) => None,
        }
    }
}

type Result<T> = std::result::Result<T, MsgpackError>;

/// Reads one batch. What follows it in the bytes is an error: it would be lost in silence.
pub fn batch(bytes: &[u8]) -> Result<Batch> {
    let mut reader = Reader::new(bytes);
    let len = reader.array("batch")?;
    if len < 2 {
        return Err(MsgpackError::Short { what: "batch" });
    }
    let mut batch = Batch { seconds: reader.float("batch.ts")?, ..Batch::default() };
    for _ in 0..reader.array("batch.events")? {
        match event(&mut reader)? {
            Some(event) => batch.events.push(event),
            None => batch.unknown += 1,
        }
    }
    if len > 2 && !reader.nil("batch.data_parallel_rank")? {
        batch.rank = Some(reader.uint("batch.data_parallel_rank")?);
    }
    (3..len).try_for_each(|_| reader.skip("batch"))?;
    if reader.is_empty() { Ok(batch) } else { Err(MsgpackError::Range { what: "the end of the batch" }) }
}

fn event(reader: &mut Reader<'_>) -> Result<Option<Event>> {
    match reader.kind("event")? {
        Kind::Map => event_from_map(reader),
        Kind::Array => event_from_array(reader),
        _ => reader.skip("event").map(|()| None),
    }
}

/// A name: an integer of either sign, or bytes.
fn name(reader: &mut Reader<'_>, what: &'static str) -> Result<EngineBlockId> {
    if reader.kind(what)? == Kind::Bytes {
        return reader.bytes(what).map(EngineBlockId::from);
    }
    Ok(match reader.int(what)? {
        Int::Positive(name) => name.into(),
        Int::Negative(name) => name.into(),
    })
}

fn names(reader: &mut Reader<'_>) -> Result<Vec<EngineBlockId>> {
    reader.list("block_hashes", |reader| name(reader, "block_hashes"))
}

fn parent(reader: &mut Reader<'_>) -> Result<Option<EngineBlockId>> {
    if reader.nil("parent_block_hash")? { Ok(None) } else { name(reader, "parent_block_hash").map(Some) }
}

impl Stored {
    /// Tokens, or pairs of neighbours that overlap by one.
    fn read_tokens(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        const WHAT: &str = "token_ids";
        let len = reader.array(WHAT)?;
        self.tokens = Vec::with_capacity(len + 1);
        for at in 0..len {
            if reader.kind(WHAT)? != Kind::Array {
                self.tokens.push(reader.uint(WHAT)?);
                continue;
            }
            self.pairs = true;
            if reader.array(WHAT)? != 2 {
                return Err(MsgpackError::Range { what: WHAT });
            }
            self.tokens.push(reader.uint(WHAT)?);
            let second: TokenId = reader.uint(WHAT)?;
            if at + 1 == len {
                self.tokens.push(second);
            }
        }
        Ok(())
    }

    fn read_lora_id(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        if !reader.nil("lora_id")? {
            self.lora_id = Some(match reader.int("lora_id")? {
                Int::Positive(id) => id.cast_signed(),
                Int::Negative(id) => id,
            });
        }
        Ok(())
    }

    /// Per block nil or a list of keys. A bare text that is not the adapter's is a salt on a prompt's first
    /// block; anything else is media.
    fn read_extra_keys(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        const WHAT: &str = "extra_keys";
        if reader.nil(WHAT)? {
            return Ok(());
        }
        for at in 0..reader.array(WHAT)? {
            if reader.nil(WHAT)? {
                continue;
            }
            let mut adapter = self.lora_name.as_deref();
            for _ in 0..reader.array(WHAT)? {
                let text = if reader.kind(WHAT)? == Kind::Text { Some(reader.text(WHAT)?) } else { None };
                match text {
                    // Once: a salt may be called the same.
                    Some(key) if adapter.is_some_and(|adapter| adapter == key) => adapter = None,
                    Some(key) if at == 0 && self.extra.cache_salt.is_none() && !is_digest(key) => {
                        self.extra.cache_salt = Some(key.to_owned());
                    }
                    text => {
                        if text.is_none() {
                            reader.skip(WHAT)?;
                        }
                        self.extra.media_from.get_or_insert(at);
                    }
                }
            }
        }
        Ok(())
    }
}

/// How media are named: by a hash in hexadecimal.
fn is_digest(key: &str) -> bool {
    key.len() == 64 && key.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A field that says the block is not this worker's own, unless it says so.
fn own(reader: &mut Reader<'_>, what: &'static str, own: &str) -> Result<bool> {
    match reader.kind(what)? {
        Kind::Nil => reader.nil(what),
        Kind::Text => Ok(reader.text(what)?.eq_ignore_ascii_case(own)),
        _ => reader.skip(what).map(|()| false),
    }
}

impl Place {
    fn read_group(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        if !reader.nil("group_idx")? {
            self.group = Some(reader.uint("group_idx")?);
        }
        Ok(())
    }

    fn read_kind(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        self.kind = reader.optional_text("kv_cache_spec_kind")?.map(str::to_owned);
        Ok(())
    }

    /// Reads a field that stored and removed events share; false when it is none of them.
    fn read_field(&mut self, field: &str, reader: &mut Reader<'_>) -> Result<bool> {
        match field {
            "medium" => self.medium = reader.optional_text("medium")?.map(str::to_owned),
            "group_idx" => self.read_group(reader)?,
            "kv_cache_spec_kind" => self.read_kind(reader)?,
            "locality" => self.foreign |= !own(reader, "locality", "LOCAL")?,
            "ownership" => self.foreign |= !own(reader, "ownership", "")?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// A map's field that is a text, wherever it is.
fn text_field<'a>(mut map: Reader<'a>, wanted: &str) -> Result<Option<&'a str>> {
    for _ in 0..map.map("event")? {
        if map.text("event's field")? == wanted {
            return map.optional_text("event's field");
        }
        map.skip("event")?;
    }
    Ok(None)
}

fn event_from_map(reader: &mut Reader<'_>) -> Result<Option<Event>> {
    // Engines say the kind first, and an adapter's name before the keys it is told from a salt by. Whoever does not is
    // searched for them once.
    let start = *reader;
    let fields = reader.map("event")?;
    let (mut kind, mut kind_known, mut name_known) = (None, false, false);
    let mut stored = Stored::default();
    let mut seen = [false; 3];
    for _ in 0..fields {
        let field = reader.text("event's field")?;
        if field == "type" {
            (kind, kind_known) = (Some(reader.text("type")?), true);
            continue;
        }
        if !kind_known {
            (kind, kind_known) = (text_field(start, "type")?, true);
        }
        match (kind, field) {
            (Some("BlockStored" | "BlockRemoved"), "block_hashes") => {
                stored.names = names(reader)?;
                seen[0] = true;
            }
            (Some("BlockStored"), "parent_block_hash") => stored.parent = parent(reader)?,
            (Some("BlockStored"), "token_ids") => {
                stored.read_tokens(reader)?;
                seen[1] = true;
            }
            (Some("BlockStored"), "block_size") => {
                stored.block_tokens = reader.uint("block_size")?;
                seen[2] = true;
            }
            (Some("BlockStored"), "lora_id") => stored.read_lora_id(reader)?,
            (Some("BlockStored"), "lora_name") => {
                stored.lora_name = reader.optional_text("lora_name")?.map(str::to_owned);
                name_known = true;
            }
            (Some("BlockStored"), "extra_keys") => {
                if !name_known && reader.kind("extra_keys")? != Kind::Nil {
                    stored.lora_name = text_field(start, "lora_name")?.map(str::to_owned);
                    name_known = true;
                }
                stored.read_extra_keys(reader)?;
            }
            (Some("BlockStored"), "cache_salt") => {
                stored.extra.cache_salt = reader.optional_text("cache_salt")?.map(str::to_owned);
            }
            (Some("BlockStored" | "BlockRemoved"), field) => {
                if !stored.place.read_field(field, reader)? {
                    reader.skip("event")?;
                }
            }
            _ => reader.skip("event")?,
        }
    }
    let missing = |what| Err(MsgpackError::Short { what });
    match kind {
        Some("BlockStored") => match seen {
            [false, ..] => missing("BlockStored.block_hashes"),
            [_, false, _] => missing("BlockStored.token_ids"),
            [_, _, false] => missing("BlockStored.block_size"),
            _ => Ok(Some(Event::Stored(stored))),
        },
        Some("BlockRemoved") if !seen[0] => missing("BlockRemoved.block_hashes"),
        Some("BlockRemoved") => Ok(Some(Event::Removed { names: stored.names, place: stored.place })),
        Some("AllBlocksCleared") => Ok(Some(Event::Cleared)),
        _ => Ok(None),
    }
}

fn event_from_array(reader: &mut Reader<'_>) -> Result<Option<Event>> {
    let len = reader.array("event")?;
    if len == 0 || reader.kind("event's kind")? != Kind::Text {
        return (0..len).try_for_each(|_| reader.skip("event")).map(|()| None);
    }
    let kind = reader.text("event's kind")?;
    let mut stored = Stored::default();
    for slot in 1..len {
        match (kind, slot) {
            ("BlockStored" | "BlockRemoved", 1) => stored.names = names(reader)?,
            ("BlockStored", 2) => stored.parent = parent(reader)?,
            ("BlockStored", 3) => stored.read_tokens(reader)?,
            ("BlockStored", 4) => stored.block_tokens = reader.uint("block_size")?,
            ("BlockStored", 5) => stored.read_lora_id(reader)?,
            ("BlockStored", 6) | ("BlockRemoved", 2) => {
                stored.place.medium = reader.optional_text("medium")?.map(str::to_owned);
            }
            // vLLM's name of an adapter, or what SGLang knows besides.
            ("BlockStored", 7) if reader.kind("metadata")? == Kind::Map => stored.read_metadata(reader)?,
            ("BlockStored", 7) => stored.lora_name = reader.optional_text("lora_name")?.map(str::to_owned),
            ("BlockStored", 8) => stored.read_extra_keys(reader)?,
            ("BlockStored", 9) | ("BlockRemoved", 3) => stored.place.read_group(reader)?,
            ("BlockStored", 10) => stored.place.read_kind(reader)?,
            _ => reader.skip("event")?,
        }
    }
    match kind {
        "BlockStored" if len < 5 => Err(MsgpackError::Short { what: "BlockStored" }),
        "BlockStored" => Ok(Some(Event::Stored(stored))),
        "BlockRemoved" if len < 2 => Err(MsgpackError::Short { what: "BlockRemoved" }),
        "BlockRemoved" => Ok(Some(Event::Removed { names: stored.names, place: stored.place })),
        "AllBlocksCleared" => Ok(Some(Event::Cleared)),
        _ => Ok(None),
    }
}

impl Stored {
    fn read_metadata(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        for _ in 0..reader.map("metadata")? {
            match reader.text("metadata's field")? {
                "cache_salt" => {
                    self.extra.cache_salt = reader.optional_text("cache_salt")?.map(str::to_owned);
                }
                _ => reader.skip("metadata")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
