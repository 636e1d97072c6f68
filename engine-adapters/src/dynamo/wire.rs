//! Envelopes and router events.

use kvlane_indexer::{BlockHash, EngineBlockId, KvEvent, StoredBlock, Tier, WorkerId};
use rmp::encode::{self, ByteBuf};
use serde_json::Value;

use crate::msgpack::{Int, Kind, MsgpackError, Reader};

type Result<T> = std::result::Result<T, MsgpackError>;

/// One message of a publisher. The payload is msgpack of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    pub publisher: u64,
    /// Counts a publisher's messages, from zero.
    pub sequence: u64,
    pub published_at_ms: u64,
    pub topic: &'a str,
    pub payload: &'a [u8],
}

impl<'a> Envelope<'a> {
    pub fn decode(bytes: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        let mut envelope = Self { publisher: 0, sequence: 0, published_at_ms: 0, topic: "", payload: &[] };
        let mut seen = 0;
        for _ in 0..reader.map("envelope")? {
            match reader.text("envelope's field")? {
                "publisher_id" => (envelope.publisher, seen) = (reader.uint("publisher_id")?, seen + 1),
                "sequence" => (envelope.sequence, seen) = (reader.uint("sequence")?, seen + 1),
                "published_at" => envelope.published_at_ms = reader.uint("published_at")?,
                "topic" => envelope.topic = reader.text("topic")?,
                "payload" => (envelope.payload, seen) = (reader.bytes("payload")?, seen + 1),
                _ => reader.skip("envelope")?,
            }
        }
        if seen == 3 { Ok(envelope) } else { Err(MsgpackError::Short { what: "envelope" }) }
    }
}

/// A change of one worker's cache, as Dynamo says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterEvent {
    pub worker: WorkerId,
    /// Counts a worker's events, from one. In 0.9 all events of a batch have one number.
    pub event_id: u64,
    /// None when it is about memory that is not the worker's own.
    pub event: Option<KvEvent>,
}

/// The events of a payload: an array of them, or a single one as up to 1.3.
pub fn decode_events(payload: &[u8]) -> Result<Vec<RouterEvent>> {
    let mut reader = Reader::new(payload);
    let events = match reader.kind("payload")? {
        Kind::Array => reader.list("payload", router_event)?,
        _ => vec![router_event(&mut reader)?],
    };
    if reader.is_empty() { Ok(events) } else { Err(MsgpackError::Range { what: "the end of the payload" }) }
}

fn tier_of(name: &str) -> Option<Tier> {
    match name {
        "device" => Some(Tier::Device),
        "host_pinned" => Some(Tier::Host),
        "disk" | "external" => Some(Tier::Disk),
        _ => None,
    }
}

fn tier_name(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "device",
        Tier::Host => "host_pinned",
        Tier::Disk => "disk",
    }
}

fn hash(reader: &mut Reader<'_>, what: &'static str) -> Result<u64> {
    Ok(match reader.int(what)? {
        Int::Positive(hash) => hash,
        Int::Negative(hash) => hash.cast_unsigned(),
    })
}

/// An event's data before its tier is known, which may come later in the bytes.
enum Data {
    Stored(Option<EngineBlockId>, Vec<StoredBlock>),
    Removed(Vec<EngineBlockId>),
    Cleared,
}

fn router_event(reader: &mut Reader<'_>) -> Result<RouterEvent> {
    let (mut worker, mut tier, mut own, mut event) = (None, Some(Tier::Device), true, None);
    for _ in 0..reader.map("router event")? {
        match reader.text("router event's field")? {
            "worker_id" => worker = Some(reader.uint::<u64>("worker_id")?),
            "storage_tier" => {
                tier = reader.optional_text("storage_tier")?.map_or(Some(Tier::Device), tier_of);
            }
            "residency_domain" => {
                own = reader.optional_text("residency_domain")?.is_none_or(|domain| domain == "worker");
            }
            "event" => event = Some(cache_event(reader)?),
            _ => reader.skip("router event")?,
        }
    }
    let worker = worker.ok_or(MsgpackError::Short { what: "worker_id" })?;
    let (event_id, data, rank) = event.ok_or(MsgpackError::Short { what: "event" })?;
    let event = match (data, tier.filter(|_| own)) {
        // Whatever it was about, nothing is left.
        (Data::Cleared, _) => own.then_some(KvEvent::Cleared { tier: None }),
        (Data::Stored(parent, blocks), Some(tier)) => Some(KvEvent::Stored { tier, parent, blocks }),
        (Data::Removed(ids), Some(tier)) => Some(KvEvent::Removed { tier, ids }),
        (_, None) => None,
    };
    Ok(RouterEvent { worker: WorkerId::new(worker, rank), event_id, event })
}

fn cache_event(reader: &mut Reader<'_>) -> Result<(u64, Data, u32)> {
    let (mut event_id, mut data, mut rank) = (0, None, 0);
    for _ in 0..reader.map("event")? {
        match reader.text("event's field")? {
            "event_id" => event_id = reader.uint("event_id")?,
            "dp_rank" => rank = reader.uint("dp_rank")?,
            "data" => data = Some(event_data(reader)?),
            _ => reader.skip("event")?,
        }
    }
    Ok((event_id, data.ok_or(MsgpackError::Short { what: "event.data" })?, rank))
}

/// A map with one field that is the kind; the kind alone when it has nothing to say.
fn event_data(reader: &mut Reader<'_>) -> Result<Data> {
    const UNKNOWN: MsgpackError = MsgpackError::Range { what: "event.data's kind" };
    if reader.kind("event.data")? == Kind::Text {
        return if reader.text("event.data")? == "cleared" { Ok(Data::Cleared) } else { Err(UNKNOWN) };
    }
    if reader.map("event.data")? != 1 {
        return Err(UNKNOWN);
    }
    match reader.text("event.data")? {
        "stored" => stored(reader),
        "removed" => {
            let mut ids = Vec::new();
            for _ in 0..reader.map("removed")? {
                match reader.text("removed's field")? {
                    "block_hashes" => {
                        ids = reader.list("block_hashes", |reader| {
                            hash(reader, "block_hashes").map(EngineBlockId::from)
                        })?;
                    }
                    _ => reader.skip("removed")?,
                }
            }
            Ok(Data::Removed(ids))
        }
        "cleared" => reader.skip("cleared").map(|()| Data::Cleared),
        _ => Err(UNKNOWN),
    }
}

fn stored(reader: &mut Reader<'_>) -> Result<Data> {
    let (mut parent, mut blocks) = (None, Vec::new());
    for _ in 0..reader.map("stored")? {
        match reader.text("stored's field")? {
            "parent_hash" => {
                if !reader.nil("parent_hash")? {
                    parent = Some(hash(reader, "parent_hash")?.into());
                }
            }
            "blocks" => blocks = reader.list("blocks", stored_block)?,
            _ => reader.skip("stored")?,
        }
    }
    Ok(Data::Stored(parent, blocks))
}

fn stored_block(reader: &mut Reader<'_>) -> Result<StoredBlock> {
    let (mut id, mut content) = (None, None);
    for _ in 0..reader.map("block")? {
        match reader.text("block's field")? {
            "block_hash" => id = Some(hash(reader, "block_hash")?),
            "tokens_hash" => content = Some(hash(reader, "tokens_hash")?),
            _ => reader.skip("block")?,
        }
    }
    match (id, content) {
        (Some(id), Some(content)) => Ok(StoredBlock { id: id.into(), hash: BlockHash(content) }),
        _ => Err(MsgpackError::Short { what: "block" }),
    }
}

/// The plain JSON of 0.9; none when it is something else.
pub fn decode_json_event(body: &[u8]) -> Option<RouterEvent> {
    let value: Value = serde_json::from_slice(body).ok()?;
    let event = value.get("event")?;
    let worker =
        WorkerId::new(value.get("worker_id")?.as_u64()?, event["dp_rank"].as_u64().unwrap_or(0) as u32);
    let hash = |value: &Value| value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned));
    let data = event.get("data")?;
    let tier = Tier::Device;
    let event_data = if data == "cleared" {
        KvEvent::Cleared { tier: None }
    } else if let Some(stored) = data.get("stored") {
        let block = |block: &Value| {
            let id = hash(block.get("block_hash")?)?.into();
            Some(StoredBlock { id, hash: BlockHash(hash(block.get("tokens_hash")?)?) })
        };
        let blocks = stored.get("blocks")?.as_array()?.iter().map(block).collect::<Option<_>>()?;
        KvEvent::Stored {
            tier,
            parent: stored.get("parent_hash").and_then(hash).map(EngineBlockId::from),
            blocks,
        }
    } else {
        let ids = data.get("removed")?.get("block_hashes")?.as_array()?;
        let ids = ids.iter().map(|id| hash(id).map(EngineBlockId::from)).collect::<Option<_>>()?;
        KvEvent::Removed { tier, ids }
    };
    Some(RouterEvent { worker, event_id: event.get("event_id")?.as_u64()?, event: Some(event_data) })
}

/// Writing into memory cannot fail, so results are dropped here and nowhere else.
struct Writer(ByteBuf);

impl Writer {
    fn map(&mut self, len: u32) {
        let _ = encode::write_map_len(&mut self.0, len);
    }

    fn array(&mut self, len: usize) {
        let _ = encode::write_array_len(&mut self.0, len as u32);
    }

    fn text(&mut self, text: &str) {
        let _ = encode::write_str(&mut self.0, text);
    }

    fn int(&mut self, value: u64) {
        let _ = encode::write_uint(&mut self.0, value);
    }

    fn nil(&mut self) {
        let _ = encode::write_nil(&mut self.0);
    }
}

/// An array of events, as since 1.4.
pub fn encode_events<'a>(
    worker: WorkerId,
    events: impl ExactSizeIterator<Item = (u64, &'a KvEvent)>,
) -> Vec<u8> {
    let mut to = Writer(ByteBuf::new());
    to.array(events.len());
    for (event_id, event) in events {
        to.map(4);
        to.text("worker_id");
        to.int(worker.instance);
        to.text("storage_tier");
        let tier = match event {
            KvEvent::Stored { tier, .. } | KvEvent::Removed { tier, .. } => *tier,
            KvEvent::Cleared { tier } => tier.unwrap_or_default(),
        };
        to.text(tier_name(tier));
        to.text("residency_domain");
        to.text("worker");
        to.text("event");
        to.map(3);
        to.text("event_id");
        to.int(event_id);
        to.text("data");
        match event {
            KvEvent::Stored { parent, blocks, .. } => {
                to.map(1);
                to.text("stored");
                to.map(3);
                to.text("parent_hash");
                match parent {
                    Some(parent) => to.int(parent.to_u64()),
                    None => to.nil(),
                }
                to.text("start_position");
                to.nil();
                to.text("blocks");
                to.array(blocks.len());
                for block in blocks {
                    to.map(3);
                    to.text("block_hash");
                    to.int(block.id.to_u64());
                    to.text("tokens_hash");
                    to.int(block.hash.0);
                    to.text("mm_extra_info");
                    to.nil();
                }
            }
            KvEvent::Removed { ids, .. } => {
                to.map(1);
                to.text("removed");
                to.map(1);
                to.text("block_hashes");
                to.array(ids.len());
                ids.iter().for_each(|id| to.int(id.to_u64()));
            }
            KvEvent::Cleared { .. } => to.text("cleared"),
        }
        to.text("dp_rank");
        to.int(u64::from(worker.dp_rank));
    }
    to.0.into_vec()
}

pub fn encode_envelope(envelope: &Envelope<'_>) -> Vec<u8> {
    let mut to = Writer(ByteBuf::new());
    to.map(5);
    to.text("publisher_id");
    to.int(envelope.publisher);
    to.text("sequence");
    to.int(envelope.sequence);
    to.text("published_at");
    to.int(envelope.published_at_ms);
    to.text("topic");
    to.text(envelope.topic);
    to.text("payload");
    let _ = encode::write_bin(&mut to.0, envelope.payload);
    to.0.into_vec()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_json_of_0_9_is_read() {
        let sample = br#"{"worker_id":1,"event":{"event_id":7,"data":{"stored":{"parent_hash":null,"blocks":[{"block_hash":11,"tokens_hash":22,"mm_extra_info":null}]}},"dp_rank":0}}"#;
        let block = StoredBlock { id: 11_u64.into(), hash: BlockHash(22) };
        let event = KvEvent::Stored { tier: Tier::Device, parent: None, blocks: vec![block] };
        let expected = RouterEvent { worker: WorkerId::new(1, 0), event_id: 7, event: Some(event) };
        assert_eq!(decode_json_event(sample), Some(expected));
        let removed =
            br#"{"worker_id":1,"event":{"event_id":8,"data":{"removed":{"block_hashes":[11]}},"dp_rank":2}}"#;
        assert_eq!(decode_json_event(removed).unwrap().worker, WorkerId::new(1, 2));
        let cleared = br#"{"worker_id":1,"event":{"event_id":9,"data":"cleared"}}"#;
        assert_eq!(decode_json_event(cleared).unwrap().event, Some(KvEvent::Cleared { tier: None }));
        for wrong in
            [&b"{"[..], b"[]", b"{}", br#"{"worker_id":1,"event":{"event_id":1,"data":{"moved":{}}}}"#]
        {
            assert_eq!(decode_json_event(wrong), None);
        }
    }

    #[test]
    fn a_single_event_and_memory_of_others_are_understood() {
        let all = encode_events(
            WorkerId::new(9, 1),
            [(3, &KvEvent::Removed { tier: Tier::Host, ids: vec![5_u64.into()] })].into_iter(),
        );
        let single = &all[1..];
        let event = KvEvent::Removed { tier: Tier::Host, ids: vec![5_u64.into()] };
        assert_eq!(
            decode_events(single).unwrap(),
            [RouterEvent { worker: WorkerId::new(9, 1), event_id: 3, event: Some(event) }]
        );
        // `worker` and `cache_owner` differ in length, so the byte before says so.
        let at = single.windows(7).position(|bytes| bytes == b"\xa6worker").unwrap();
        let owner = [&single[..at], b"\xabcache_owner", &single[at + 7..]].concat();
        assert_eq!(decode_events(&owner).unwrap()[0].event, None);
    }

    proptest! {
        #[test]
        fn what_we_write_is_what_we_read(
            worker in any::<u64>(), rank in 0..8_u32, sequence in any::<u64>(),
            stored in prop::collection::vec((any::<u64>(), any::<u64>()), 0..5), parent in any::<Option<u64>>(),
            removed in prop::collection::vec(any::<u64>(), 0..5),
        ) {
            let blocks = stored.iter().map(|(id, hash)| StoredBlock { id: (*id).into(), hash: BlockHash(*hash) }).collect();
            let events = [
                KvEvent::Stored { tier: Tier::Device, parent: parent.map(EngineBlockId::from), blocks },
                KvEvent::Removed { tier: Tier::Disk, ids: removed.iter().map(|id| (*id).into()).collect() },
                KvEvent::Cleared { tier: None },
            ];
            let worker = WorkerId::new(worker, rank);
            let payload = encode_events(worker, (7..).zip(&events).take(3).collect::<Vec<_>>().into_iter());
            let envelope = Envelope { publisher: 42, sequence, published_at_ms: 5, topic: "kv-events", payload: &payload };
            let bytes = encode_envelope(&envelope);
            prop_assert_eq!(Envelope::decode(&bytes).unwrap(), envelope);
            let read = decode_events(&payload).unwrap();
            for (at, event) in events.into_iter().enumerate() {
                prop_assert_eq!(&read[at], &RouterEvent { worker, event_id: 7 + at as u64, event: Some(event) });
            }
        }

        #[test]
        fn no_bytes_bring_it_down(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Envelope::decode(&bytes), decode_events(&bytes), decode_json_event(&bytes));
        }
    }
}
