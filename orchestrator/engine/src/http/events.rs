//! Server-sent events: from the bytes of a stream to the data of its events.
//!
//! [`EventReader::feed`] takes any split of the bytes and calls an [`EventSink`] with the pieces of each
//! event's data as they arrive, so that an event is never put together. Lines end in `\n`, `\r\n` or `\r`;
//! comments (which servers send to keep a connection alive) and fields other than `data` are walked over.
//!
//! # Invariants
//! - The calls depend on the bytes alone, up to how the data of one event is cut into pieces.
//! - Memory is a few bytes, whatever the server sends.
//!
//! # Deliberately absent
//! Names and ids of events, and reconnecting by them: the engines use neither. An event that is not closed by
//! an empty line is not reported, as the standard has it.

use memchr::memchr2;

/// The one field that is read, with its colon.
const DATA: &[u8] = b"data:";

/// Takes what an [`EventReader`] finds.
pub(super) trait EventSink {
    /// What ends the reading early.
    type Error;

    /// The next bytes of the current event's data; lines of one event are joined by `\n`. Never empty.
    fn data(&mut self, piece: &[u8]) -> Result<(), Self::Error>;

    /// The event is whole. Called for events with data only.
    fn end_event(&mut self) -> Result<(), Self::Error>;
}

/// The reader's place in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    /// The line starts with so many bytes of [`DATA`].
    Name(usize),
    /// The reader is behind the colon; one space there is no part of the data.
    Space,
    Data,
    Skipped,
}

/// Splits a stream into events, fed chunk by chunk.
#[derive(Debug)]
pub(super) struct EventReader {
    line: Line,
    /// Whether a line feed that comes next belongs to the line before.
    after_return: bool,
    /// Lines of data in the current event so far.
    lines: u64,
}

impl EventReader {
    /// A reader at the start of a stream.
    pub(super) fn new() -> Self {
        Self { line: Line::Name(0), after_return: false, lines: 0 }
    }

    /// Reads the next bytes of the stream. After an error the reader is of no further use.
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
            // A line of data that is empty.
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
