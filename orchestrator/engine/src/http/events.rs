//! Server-sent events: splits the bytes of a stream into the data of its events.
//!
//! [`EventReader::feed`] accepts any split of the bytes. It calls an [`EventSink`] with the pieces of each
//! event's data as they arrive, so an event is never copied into one buffer. Lines end in `\n`, `\r\n` or
//! `\r`. Comments, which servers send to keep a connection alive, and fields other than `data` are skipped.
//!
//! # Invariants
//! - The calls do not depend on how the stream is split into chunks, except that the data of one event may be
//!   cut into other pieces.
//! - The reader uses a few bytes of memory, whatever the server sends.
//!
//! # Deliberately absent
//! Names and ids of events are ignored, and the client does not reconnect by id, because the engines use
//! neither names nor ids. As in the standard, an event that is not closed by an empty line is not reported.

use memchr::memchr2;

/// The only field that is read, with its colon.
const DATA: &[u8] = b"data:";

/// Receives the events of an [`EventReader`].
pub(super) trait EventSink {
    /// The error that ends the reading early.
    type Error;

    /// Receives the next bytes of the current event's data, which are never empty. Lines of one event are
    /// joined by `\n`.
    fn data(&mut self, piece: &[u8]) -> Result<(), Self::Error>;

    /// The event is complete. Called only for events with data.
    fn end_event(&mut self) -> Result<(), Self::Error>;
}

/// The reader's position in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    /// The line starts with this number of bytes of [`DATA`].
    Name(usize),
    /// The reader is behind the colon. One space at this position does not belong to the data.
    Space,
    Data,
    Skipped,
}

/// Splits a stream into events. The stream is fed chunk by chunk.
#[derive(Debug)]
pub(super) struct EventReader {
    line: Line,
    /// Whether a line feed at the next byte belongs to the end of the previous line.
    after_return: bool,
    /// Lines of data in the current event so far.
    lines: u64,
}

impl EventReader {
    /// A reader at the start of a stream.
    pub(super) fn new() -> Self {
        Self { line: Line::Name(0), after_return: false, lines: 0 }
    }

    /// Reads the next bytes of the stream. After an error the reader must not be used again.
    pub(super) fn feed<S: EventSink>(&mut self, chunk: &[u8], sink: &mut S) -> Result<(), S::Error> {
        let mut at = 0;
        while let Some(&byte) = chunk.get(at) {
            if std::mem::take(&mut self.after_return) && byte == b'\n' {
                at += 1;
                continue;
            }
            if matches!(byte, b'\n' | b'\r') {
                self.after_return = byte == b'\r';
                at += 1;
                self.end_line(sink)?;
                continue;
            }
            at = match self.line {
                Line::Name(matched) => {
                    self.line = after_name_byte(matched, byte);
                    at + 1
                }
                Line::Space => {
                    self.line = Line::Data;
                    self.begin_data(sink)?;
                    at + usize::from(byte == b' ')
                }
                Line::Data | Line::Skipped => {
                    let rest = &chunk[at..];
                    let piece = &rest[..memchr2(b'\n', b'\r', rest).unwrap_or(rest.len())];
                    if self.line == Line::Data {
                        sink.data(piece)?;
                    }
                    at + piece.len()
                }
            };
        }
        Ok(())
    }

    fn begin_data<S: EventSink>(&mut self, sink: &mut S) -> Result<(), S::Error> {
        self.lines += 1;
        if self.lines > 1 { sink.data(b"\n") } else { Ok(()) }
    }

    fn end_line<S: EventSink>(&mut self, sink: &mut S) -> Result<(), S::Error> {
        match std::mem::replace(&mut self.line, Line::Name(0)) {
            Line::Name(0) if self.lines > 0 => {
                self.lines = 0;
                sink.end_event()
            }
            // An empty line of data.
            Line::Space => self.begin_data(sink),
            Line::Name(_) | Line::Data | Line::Skipped => Ok(()),
        }
    }
}

fn after_name_byte(matched: usize, byte: u8) -> Line {
    match DATA.get(matched) {
        Some(wanted) if *wanted == byte && matched + 1 == DATA.len() => Line::Space,
        Some(wanted) if *wanted == byte => Line::Name(matched + 1),
        _ => Line::Skipped,
    }
}

#[cfg(test)]
mod tests;
