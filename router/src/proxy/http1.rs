//! HTTP/1.1 as it is spoken with workers: a request is written, an answer's head is read, and its body is taken out of
//! its framing as it comes.
//!
//! Written by hand because an answer has to be read by the task that passes it on: a library's connection has a task, or
//! at least a queue, of its own, and every chunk of every stream would go through that.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use hyper::header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, TRANSFER_ENCODING};
use hyper::http::response::Parts;
use hyper::http::uri::PathAndQuery;
use hyper::{HeaderMap, Method, Response, StatusCode, Version};
use memchr::memchr;

/// What a worker sent that is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Http1Error {
    #[error("connection: {0}")]
    Io(#[from] io::Error),
    #[error("closed before an answer")]
    Unanswered,
    #[error("broke in the middle of an answer: {0}")]
    Broken(io::Error),
    #[error("closed in the middle of an answer")]
    Truncated,
    #[error("not an HTTP/1 answer: {0}")]
    Malformed(&'static str),
}

/// A longer head than this, or more fields, is none.
const MAX_HEAD: usize = 64 << 10;
const MAX_FIELDS: usize = 100;
/// A chunk's size and what may be said besides.
const MAX_SIZE_LINE: usize = 4 << 10;

/// The first lines of a request whose body has a length.
pub(super) fn write_head(
    to: &mut BytesMut,
    method: &Method,
    path: &PathAndQuery,
    host: &HeaderValue,
    fields: &HeaderMap,
    length: usize,
) {
    let mut put = |parts: &[&[u8]]| parts.iter().for_each(|part| to.extend_from_slice(part));
    put(&[
        method.as_str().as_bytes(),
        b" ",
        path.as_str().as_bytes(),
        b" HTTP/1.1\r\nhost: ",
        host.as_bytes(),
    ]);
    put(&[b"\r\ncontent-length: ", length.to_string().as_bytes(), b"\r\n"]);
    for (name, value) in fields {
        put(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
    }
    put(&[b"\r\n"]);
}

/// An answer's head, and how its body comes.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) parts: Parts,
    pub(super) framing: Framing,
    /// Whether the connection can be used again when the body is over.
    pub(super) stays: bool,
}

/// Takes an answer's head off the front of what was read; none when it is not all there. News on the way to it (1xx) are
/// passed over.
pub(super) fn take_head(buffer: &mut BytesMut) -> Result<Option<Head>, Http1Error> {
    loop {
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let mut answer = httparse::Response::new(&mut fields);
        let length = match answer.parse(buffer) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) if buffer.len() > MAX_HEAD => {
                return Err(Http1Error::Malformed("its head is too long"));
            }
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(Http1Error::Malformed("its head cannot be read")),
        };
        let status = answer.code.and_then(|code| StatusCode::from_u16(code).ok());
        let status = status.ok_or(Http1Error::Malformed("its status is none"))?;
        if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
            buffer.advance(length);
            continue;
        }
        let version = if answer.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
        // Fields stay where they were read; what tells where they are has to be kept until the buffer is split.
        let base = buffer.as_ptr() as usize;
        let places: smallvec::SmallVec<[(HeaderName, std::ops::Range<usize>); 16]> = answer
            .headers
            .iter()
            .map(|field| {
                let name = HeaderName::from_bytes(field.name.as_bytes());
                let from = field.value.as_ptr() as usize - base;
                name.map(|name| (name, from..from + field.value.len()))
            })
            .collect::<Result<_, _>>()
            .map_err(|_| Http1Error::Malformed("a field's name is none"))?;
        let head = buffer.split_to(length).freeze();
        let mut headers = HeaderMap::with_capacity(places.len());
        for (name, place) in places {
            let value = HeaderValue::from_maybe_shared(head.slice(place));
            headers.append(name, value.map_err(|_| Http1Error::Malformed("a field's value is none"))?);
        }
        let framing = Framing::of(status, &headers)?;
        let says = |word: &str| {
            let all = headers.get_all(CONNECTION);
            let mut words =
                all.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
            words.any(|said| said.trim().eq_ignore_ascii_case(word))
        };
        let stays = framing != Framing::UntilClosed
            && if version == Version::HTTP_10 { says("keep-alive") } else { !says("close") };
        let mut parts = Response::new(()).into_parts().0;
        (parts.status, parts.version, parts.headers) = (status, version, headers);
        return Ok(Some(Head { parts, framing, stays }));
    }
}

/// How a body is framed, and how far it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// So many bytes are left.
    Length(u64),
    Chunked(Chunk),
    UntilClosed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunk {
    /// A size comes next.
    Size,
    /// So many bytes of one are left.
    Data(u64),
    /// The line end behind one.
    End,
    /// Fields behind the last one.
    Trailers,
    Over,
}

impl Framing {
    fn of(status: StatusCode, headers: &HeaderMap) -> Result<Self, Http1Error> {
        if status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED {
            return Ok(Self::Length(0));
        }
        if let Some(coding) = headers.get_all(TRANSFER_ENCODING).iter().next_back() {
            let last = coding.as_bytes().rsplit(|byte| *byte == b',').next().unwrap_or_default();
            return if last.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                Ok(Self::Chunked(Chunk::Size))
            } else {
                Ok(Self::UntilClosed)
            };
        }
        let values = headers
            .get_all(CONTENT_LENGTH)
            .iter()
            .flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        let mut lengths = values.map(|value| {
            let digits = std::str::from_utf8(value.trim_ascii()).ok()?;
            digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u64>().ok())?
        });
        match lengths.next() {
            None => Ok(Self::UntilClosed),
            Some(Some(length)) if lengths.all(|other| other == Some(length)) => Ok(Self::Length(length)),
            Some(_) => Err(Http1Error::Malformed("its length is none, or several")),
        }
    }

    pub(super) fn is_over(self) -> bool {
        matches!(self, Self::Length(0) | Self::Chunked(Chunk::Over))
    }

    /// Whether the end of the connection is the end of the body.
    pub(super) fn ends_with_connection(self) -> bool {
        self == Self::UntilClosed || self.is_over()
    }

    /// Takes what is there of the body off the front of what was read: several chunks that are there become one.
    pub(super) fn take(&mut self, buffer: &mut BytesMut) -> Result<Bytes, Http1Error> {
        match self {
            Self::UntilClosed => Ok(buffer.split().freeze()),
            Self::Length(left) => {
                let there = buffer.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= there as u64;
                Ok(buffer.split_to(there).freeze())
            }
            Self::Chunked(chunk) => {
                let (mut first, mut more) = (Bytes::new(), BytesMut::new());
                loop {
                    let data = match chunk.step(buffer) {
                        Ok(Some(data)) => data,
                        Ok(None) => break,
                        // What came before is still good; the same is found wrong again next time.
                        Err(_) if !(first.is_empty() && more.is_empty()) => break,
                        Err(error) => return Err(error),
                    };
                    if data.is_empty() {
                        continue;
                    }
                    if first.is_empty() && more.is_empty() {
                        first = data;
                    } else {
                        more.extend_from_slice(&std::mem::take(&mut first));
                        more.extend_from_slice(&data);
                    }
                }
                Ok(if more.is_empty() { first } else { more.freeze() })
            }
        }
    }
}

impl Chunk {
    /// One step further: data, maybe none; nothing when more has to be read, or it is over.
    fn step(&mut self, buffer: &mut BytesMut) -> Result<Option<Bytes>, Http1Error> {
        match self {
            Self::Over => return Ok(None),
            Self::Data(left) => {
                let there = buffer.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                if there == 0 {
                    return Ok(None);
                }
                *left -= there as u64;
                if *left == 0 {
                    *self = Self::End;
                }
                return Ok(Some(buffer.split_to(there).freeze()));
            }
            Self::End if buffer.starts_with(b"\r\n") => {
                buffer.advance(2);
                *self = Self::Size;
                return Ok(Some(Bytes::new()));
            }
            Self::Size | Self::End | Self::Trailers => {}
        }
        let Some(end) = memchr(b'\n', buffer) else {
            let longest = if *self == Self::Trailers { MAX_HEAD } else { MAX_SIZE_LINE };
            return if buffer.len() > longest {
                Err(Http1Error::Malformed("a line between chunks is too long"))
            } else {
                Ok(None)
            };
        };
        let line = buffer[..end].strip_suffix(b"\r").unwrap_or(&buffer[..end]);
        *self = match self {
            Self::End if line.is_empty() => Self::Size,
            Self::End => return Err(Http1Error::Malformed("a chunk is longer than it said")),
            Self::Trailers if line.is_empty() => Self::Over,
            Self::Trailers => Self::Trailers,
            _ => match chunk_size(line) {
                Some(0) => Self::Trailers,
                Some(size) => Self::Data(size),
                None => return Err(Http1Error::Malformed("a chunk's size is none")),
            },
        };
        buffer.advance(end + 1);
        Ok(Some(Bytes::new()))
    }
}

/// A size has no more, so that it fits into 64 bits with some to spare.
const MAX_DIGITS: usize = 15;

/// Hexadecimal, and maybe something behind a semicolon.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let line = line.trim_ascii_start();
    let (mut size, mut digits) = (0, 0);
    for digit in line.iter().map_while(|byte| char::from(*byte).to_digit(16)) {
        (size, digits) = (size << 4 | u64::from(digit), digits + 1);
        if digits > MAX_DIGITS {
            return None;
        }
    }
    let rest = line[digits..].trim_ascii_start();
    (digits > 0 && rest.first().is_none_or(|byte| *byte == b';')).then_some(size)
}

/// A whole answer, for tests and fuzzing.
#[cfg(any(test, fuzzing))]
#[allow(unreachable_pub, dead_code, reason = "all of it is for fuzzing")]
#[derive(Debug)]
pub struct ReadAnswer {
    pub parts: Parts,
    pub stays: bool,
    pub body: Vec<u8>,
    /// Whether that is all of it.
    pub whole: bool,
    /// What came behind it.
    pub behind: Bytes,
}

/// Reads an answer that comes in pieces.
#[cfg(any(test, fuzzing))]
#[allow(unreachable_pub, reason = "reached when fuzzing")]
pub fn read_pieces<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Result<ReadAnswer, Http1Error> {
    let mut buffer = BytesMut::new();
    let (mut head, mut body) = (None::<Head>, Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        if head.is_none() {
            head = take_head(&mut buffer)?;
        }
        if let Some(head) = &mut head {
            body.extend_from_slice(&head.framing.take(&mut buffer)?);
        }
    }
    let mut head = head.ok_or(Http1Error::Unanswered)?;
    // What was wrong behind something good is said now.
    body.extend_from_slice(&head.framing.take(&mut buffer)?);
    let whole = head.framing.ends_with_connection();
    Ok(ReadAnswer { parts: head.parts, stays: head.stays, body, whole, behind: buffer.freeze() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An answer that comes in pieces of some size.
    fn read(text: &[u8], size: usize) -> Result<ReadAnswer, Http1Error> {
        read_pieces(text.chunks(size))
    }

    #[test]
    fn answers_are_read_however_they_are_cut() {
        let chunked = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nX-A: 1\r\nTransfer-Encoding: chunked\r\n\r\n\
                       5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\nTrailer: x\r\n\r\n";
        let length = "HTTP/1.1 404 Not Found\r\ncontent-length: 4, 4\r\nconnection: close\r\n\r\ngone";
        let closed = "HTTP/1.0 200 OK\r\n\r\nuntil it closes";
        let empty = "HTTP/1.1 204 No Content\r\n\r\n";
        for (text, status, body, stays) in [
            (chunked, 200, "hello world", true),
            (length, 404, "gone", false),
            (closed, 200, "until it closes", false),
            (empty, 204, "", true),
        ] {
            for size in [1, 2, 3, 7, 1000] {
                let answer = read(text.as_bytes(), size).unwrap();
                let found = String::from_utf8(answer.body).unwrap();
                assert!(answer.behind.is_empty(), "{text}");
                let expected = (status, body, stays, true);
                assert_eq!(
                    (answer.parts.status.as_u16(), found.as_str(), answer.stays, answer.whole),
                    expected,
                    "{text}"
                );
            }
        }
        assert_eq!(read(chunked.as_bytes(), 5).unwrap().parts.headers["x-a"], "1");
    }

    #[test]
    fn what_is_there_together_goes_out_together() {
        let mut framing = Framing::Chunked(Chunk::Size);
        let mut buffer = BytesMut::from(&b"1\r\na\r\n2\r\nbc\r\n3\r\nd"[..]);
        assert_eq!(framing.take(&mut buffer).unwrap(), "abcd");
        buffer.extend_from_slice(b"ef\r\n0\r\n\r\n");
        assert_eq!(framing.take(&mut buffer).unwrap(), "ef");
        assert!(framing.is_over() && buffer.is_empty());
        // And so does what came before nonsense.
        let mut framing = Framing::Chunked(Chunk::Size);
        let mut buffer = BytesMut::from(&b"1\r\na\r\n?\r\n"[..]);
        assert_eq!(framing.take(&mut buffer).unwrap(), "a");
        assert!(framing.take(&mut buffer).is_err());
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "nonsense\r\n\r\n",
            "HTTP/1.1 20 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: +4\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 1, 2\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length:\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
            &format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(MAX_HEAD)),
            &format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;{}", "y".repeat(MAX_SIZE_LINE)),
        ] {
            assert!(matches!(read(text.as_bytes(), 1 << 20), Err(Http1Error::Malformed(_))), "{text:.80}");
        }
        let half = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel";
        assert!(!read(half.as_bytes(), 9).unwrap().whole);
    }

    #[test]
    fn a_request_is_written_once_and_plainly() {
        let mut head = BytesMut::new();
        let fields = HeaderMap::from_iter([(CONNECTION, HeaderValue::from_static("x"))]);
        let path = PathAndQuery::from_static("/v1/x");
        write_head(&mut head, &Method::POST, &path, &HeaderValue::from_static("h:1"), &fields, 1203);
        assert_eq!(head, "POST /v1/x HTTP/1.1\r\nhost: h:1\r\ncontent-length: 1203\r\nconnection: x\r\n\r\n");
    }

    proptest! {
        /// Chunks of any sizes, cut anywhere, are put together again; and bytes of any kind do no harm.
        #[test]
        fn chunks_come_through(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..8), size in 1..50usize) {
            let mut text = b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, Chunked\r\n\r\n".to_vec();
            for part in &parts {
                text.extend_from_slice(format!("{:X}\r\n", part.len()).as_bytes());
                text.extend_from_slice(part);
                text.extend_from_slice(b"\r\n");
            }
            text.extend_from_slice(b"0\r\n\r\n");
            let answer = read(&text, size).unwrap();
            prop_assert_eq!((answer.body, answer.whole), (parts.concat(), true));
            let _ = read(&parts.concat(), size);
            let _ = read(&[&b"HTTP/1.1 200 OK\r\n"[..], &parts.concat()].concat(), size);
            let _ = read(&[&b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"[..], &parts.concat()].concat(), size);
        }
    }
}
