//! One HTTP/1.1 connection. It sends a request, and receives a head and a body.
//!
//! A request that waits for its answer holds only a socket: no buffer, no task and no channel. In a run
//! thousands of requests wait for minutes. With a general HTTP client each of them takes 25 KiB and a task,
//! which would be most of the cost of a run. This module therefore does the framing itself. `httparse` parses
//! heads and chunk sizes.
//!
//! # Deliberately absent
//! There is no pipelining, no upgrade, no compression and no HTTP/2, because the client never asks for them.
//! Trailers are skipped.

use std::io;
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::{StatusCode, Uri};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Maximum number of bytes of one read. It also bounds the length of a head, and of a line with a chunk's
/// size or a trailer.
const BUFFER_BYTES: usize = 64 << 10;

/// Maximum number of headers of an answer. Engines send far fewer.
const HEADERS_MAX: usize = 64;

/// An open connection.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
}

/// The parts of an answer's head that are needed.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) status: StatusCode,
    /// The time in `Retry-After`, if it is given in seconds. Engines do not send dates.
    pub(super) retry_after: Option<Duration>,
    /// Whether the connection can be used again when the body has been read.
    reusable: bool,
    framing: Framing,
}

/// The next element of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    /// The given number of bytes of the body.
    Length(u64),
    UntilClose,
    ChunkSize,
    /// The rest of a chunk.
    Chunk(u64),
    /// The line end after a chunk.
    ChunkEnd,
    Trailers,
    Done,
}

impl Connection {
    /// Resolves the name and connects, within a time limit. Cancel-safe.
    pub(super) async fn open(uri: &Uri, connect_max: Duration) -> io::Result<Self> {
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let connecting = TcpStream::connect((host, uri.port_u16().unwrap_or(80)));
        let stream = tokio::time::timeout(connect_max, connecting).await.map_err(|_elapsed| {
            let seconds = connect_max.as_secs_f64();
            io::Error::new(io::ErrorKind::TimedOut, format!("no connection within connect={seconds} s"))
        })??;
        stream.set_nodelay(true)?;
        Ok(Self { stream })
    }

    /// Whether the server has neither closed the connection nor sent anything since its last answer. The
    /// function asks the kernel, because the runtime may not have noticed a close yet.
    pub(super) fn is_quiet(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        matches!(rustix::net::recv(&self.stream, &mut [0], flags), Err(Errno::WOULDBLOCK))
    }

    /// Writes a whole request. Not cancel-safe: after half a request, the connection has to be dropped.
    pub(super) async fn write(&mut self, head: Bytes, body: Bytes) -> io::Result<()> {
        self.stream.write_all_buf(&mut head.chain(body)).await
    }

    /// Waits for the head of the answer. Not cancel-safe: dropping the future closes the connection.
    pub(super) async fn read_head(self) -> io::Result<Body> {
        // No buffer is allocated before bytes can be read.
        self.stream.readable().await?;
        let mut input = Input { stream: self.stream, buffer: Vec::new(), start: 0 };
        loop {
            match parse_head(input.unread())? {
                // This is an interim answer. The final answer follows.
                Some((used, head)) if head.status.is_informational() => {
                    input.start += used;
                    continue;
                }
                Some((used, head)) => {
                    input.start += used;
                    return Ok(Body { framing: head.framing, head, input });
                }
                None => {}
            }
            if input.fill().await? == 0 {
                return Err(closed("connection closed before the answer's head was complete"));
            }
        }
    }
}

/// A connection with an answer on it: its head, and the rest of its body.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) head: Head,
    framing: Framing,
    input: Input,
}

impl Body {
    /// The length of the whole body in bytes, if the head gives it.
    pub(super) fn length(&self) -> Option<u64> {
        match self.head.framing {
            Framing::Length(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The next bytes, or `None` at the end. Cancel-safe.
    pub(super) async fn next(&mut self) -> io::Result<Option<&[u8]>> {
        loop {
            match self.framing {
                Framing::Done | Framing::Length(0) => return Ok(None),
                Framing::Length(left) | Framing::Chunk(left) if !self.input.unread().is_empty() => {
                    let taken = self.input.take(left);
                    let left = left - taken.len() as u64;
                    self.framing = match self.framing {
                        Framing::Length(_) => Framing::Length(left),
                        _ if left > 0 => Framing::Chunk(left),
                        _ => Framing::ChunkEnd,
                    };
                    return Ok(Some(&self.input.buffer[taken]));
                }
                Framing::UntilClose if !self.input.unread().is_empty() => {
                    let taken = self.input.take(u64::MAX);
                    return Ok(Some(&self.input.buffer[taken]));
                }
                Framing::ChunkSize => {
                    let size = httparse::parse_chunk_size(self.input.unread())
                        .map_err(|_invalid| invalid("a chunk's size is not a number"))?;
                    if let httparse::Status::Complete((used, size)) = size {
                        self.input.start += used;
                        self.framing = if size == 0 { Framing::Trailers } else { Framing::Chunk(size) };
                        continue;
                    }
                }
                Framing::ChunkEnd => {
                    if let Some(line) = self.input.line() {
                        if !line.is_empty() {
                            return Err(invalid("a chunk is longer than its size"));
                        }
                        self.framing = Framing::ChunkSize;
                        continue;
                    }
                }
                Framing::Trailers => {
                    if let Some(line) = self.input.line() {
                        if line.is_empty() {
                            self.framing = Framing::Done;
                        }
                        continue;
                    }
                }
                Framing::Length(_) | Framing::Chunk(_) | Framing::UntilClose => {}
            }
            if self.input.fill().await? == 0 {
                if self.framing == Framing::UntilClose {
                    self.framing = Framing::Done;
                    continue;
                }
                return Err(closed("connection closed in the middle of the answer"));
            }
        }
    }

    /// The connection, if the body was read to its end and the server keeps it open.
    pub(super) fn into_reusable(self) -> Option<Connection> {
        let finished = matches!(self.framing, Framing::Done | Framing::Length(0));
        let reusable = finished && self.head.reusable && self.input.unread().is_empty();
        reusable.then_some(Connection { stream: self.input.stream })
    }
}

/// A socket with the bytes that were read but not used yet.
#[derive(Debug)]
struct Input {
    stream: TcpStream,
    /// The bytes from `start` on are unread. The capacity is 0 or [`BUFFER_BYTES`].
    buffer: Vec<u8>,
    start: usize,
}

impl Input {
    fn unread(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// Marks up to `most` bytes as used. Returns their range in the buffer.
    fn take(&mut self, most: u64) -> std::ops::Range<usize> {
        let count = usize::try_from(most).unwrap_or(usize::MAX).min(self.buffer.len() - self.start);
        let taken = self.start..self.start + count;
        self.start += count;
        taken
    }

    /// Marks a line as used. Returns it without its line end, or `None` if it is not complete yet.
    fn line(&mut self) -> Option<&[u8]> {
        let length = memchr::memchr(b'\n', self.unread())?;
        let taken = self.take(length as u64 + 1);
        let line = &self.buffer[taken];
        Some(line.strip_suffix(b"\r\n").or(line.strip_suffix(b"\n")).unwrap_or(line))
    }

    /// Reads the bytes that have arrived. Returns their number, which is 0 at the end of the stream.
    /// Cancel-safe.
    async fn fill(&mut self) -> io::Result<usize> {
        self.buffer.drain(..self.start);
        self.start = 0;
        if self.buffer.len() >= BUFFER_BYTES {
            return Err(invalid("a head or a line of it is longer than 64 KiB"));
        }
        loop {
            if self.buffer.capacity() == 0 {
                self.buffer.reserve_exact(BUFFER_BYTES);
            }
            match self.stream.try_read_buf(&mut self.buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            // No buffer is held during the wait, as in `read_head`: a streamed answer waits a thousand times.
            if self.buffer.is_empty() {
                self.buffer = Vec::new();
            }
            self.stream.readable().await?;
        }
    }
}

fn invalid(words: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, words)
}

fn closed(words: &str) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, words)
}

/// The head and its length, or `None` while it is incomplete.
fn parse_head(bytes: &[u8]) -> io::Result<Option<(usize, Head)>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let parsed =
        response.parse(bytes).map_err(|error| invalid(&format!("the answer is not HTTP: {error}")))?;
    let httparse::Status::Complete(used) = parsed else { return Ok(None) };
    let status = StatusCode::from_u16(response.code.unwrap_or(0))
        .map_err(|error| invalid(&format!("the answer is not HTTP: {error}")))?;
    let mut head = Head {
        status,
        retry_after: None,
        reusable: response.version == Some(1),
        framing: Framing::UntilClose,
    };
    let mut length = None;
    let mut chunked = false;
    for header in response.headers.iter() {
        let value = std::str::from_utf8(header.value).unwrap_or_default().trim();
        if header.name.eq_ignore_ascii_case("content-length") {
            let bytes: u64 = value.parse().map_err(|_invalid| invalid("content-length is not a number"))?;
            if length.is_some_and(|earlier| earlier != bytes) {
                return Err(invalid("two different values of content-length"));
            }
            length = Some(bytes);
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            if !value.eq_ignore_ascii_case("chunked") {
                return Err(invalid(&format!("transfer-encoding {value:?} was not asked for")));
            }
            chunked = true;
        } else if header.name.eq_ignore_ascii_case("connection") {
            head.reusable &= !value.split(',').any(|word| word.trim().eq_ignore_ascii_case("close"));
        } else if header.name.eq_ignore_ascii_case("retry-after") {
            head.retry_after = value.parse().ok().map(Duration::from_secs);
        }
    }
    head.framing = match length {
        _ if matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) => Framing::Length(0),
        _ if status.is_informational() => Framing::Length(0),
        // An answer with both headers may be an attempt to smuggle in another answer. The length is ignored,
        // and the connection is not used again.
        Some(_) | None if chunked => {
            head.reusable &= length.is_none();
            Framing::ChunkSize
        }
        Some(bytes) => Framing::Length(bytes),
        None => {
            head.reusable = false;
            Framing::UntilClose
        }
    };
    Ok(Some((used, head)))
}

#[cfg(test)]
mod tests;
