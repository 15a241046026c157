//! A JSON tokenizer that is fed a body chunk by chunk.
//!
//! [`Scanner::feed`] accepts any split of the body, and calls a [`Sink`] for each element that it finds. It
//! builds no tree and makes no copy: names, strings and numbers are slices of the chunk. Only a token that
//! straddles two chunks is assembled in a small buffer. The sink answers each name with an [`Interest`].
//! There are no calls for values that it skips.
//!
//! Before each element of an array, the sink may take a *run* of elements ([`Sink::run`]). The sink
//! recognises the form that engines write, so it needs fewer steps than the scanner. In an array that is
//! skipped, the scanner itself takes the runs ([`skip::run`]).
//!
//! # Invariants
//! - The elements that the sink gets, by calls or in runs, depend only on the bytes, not on their split into
//!   chunks.
//! - The scanner stores one bit for each of at most [`DEPTH_MAX`] levels, and one straddling token, which is
//!   no longer than the body.
//!
//! # Deliberately absent
//! Skipped values are not checked in full. Their quotes, brackets, commas and colons have to be correct, but
//! the digits of numbers and the escapes and UTF-8 of strings are not checked. The sink checks the values
//! that it gets, because it parses them.

use super::skip;
use super::text::find_quote_or_backslash;

/// Maximum number of nested containers. An engine's answer has at most nine.
pub(super) const DEPTH_MAX: u32 = 64;

/// Why bytes are not JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ScanError {
    /// A byte is not allowed at its position.
    #[error("invalid json at byte={at}: unexpected byte={byte:#04x}")]
    Unexpected { at: u64, byte: u8 },
    /// The document has more than [`DEPTH_MAX`] levels.
    #[error("invalid json at byte={at}: nested deeper than depth_max={DEPTH_MAX}")]
    Deep { at: u64 },
    /// The bytes ended inside the document.
    #[error("truncated json after bytes={at}")]
    Truncated { at: u64 },
}

/// Whether a sink wants the value after a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interest {
    /// The sink gets every call for the value.
    Read,
    /// The sink gets no call for the value.
    Skip,
}

/// The two kinds of containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Container {
    Object,
    Array,
}

/// The three values that are words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    Null,
    True,
    False,
}

/// Receives the elements that a [`Scanner`] finds, in the order of the document.
pub(super) trait Sink {
    /// The error that ends the scan early; the scanner's own errors are converted to it.
    type Error: From<ScanError>;

    /// A member's name, still escaped, without quotes.
    fn name(&mut self, raw: &[u8]) -> Result<Interest, Self::Error>;
    /// A container begins.
    fn begin(&mut self, container: Container) -> Result<(), Self::Error>;
    /// The innermost container ends.
    fn end(&mut self) -> Result<(), Self::Error>;
    /// A string, still escaped, without quotes.
    fn string(&mut self, raw: &[u8]) -> Result<(), Self::Error>;
    /// The bytes of a number. The sink has to check that they form a valid number.
    fn number(&mut self, raw: &[u8]) -> Result<(), Self::Error>;
    /// `null`, `true` or `false`.
    fn word(&mut self, word: Word) -> Result<(), Self::Error>;

    /// Reads elements of the innermost array from the beginning of `rest`, each with the comma that follows
    /// it. Returns the number of bytes that were read. The scanner makes none of the calls above for these
    /// elements. The sink stops before an element that it does not recognise or that is wrong. The scanner
    /// then reports this element by the calls above.
    fn run(&mut self, rest: &[u8]) -> usize {
        let _ = rest;
        0
    }
}

/// The elements that may follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    Value,
    ValueOrEnd,
    Name,
    NameOrEnd,
    Colon,
    CommaOrEnd,
    Nothing,
}

/// The token that was cut off at the end of the last chunk, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    No,
    /// A string. `escaped` means that the last byte was a backslash, which escapes the next byte.
    Text {
        is_name: bool,
        escaped: bool,
    },
    Number,
    Word {
        word: Word,
        matched: usize,
    },
}

/// Scans one document, fed chunk by chunk.
#[derive(Debug)]
pub(super) struct Scanner {
    expect: Expect,
    open: Open,
    /// The beginning of an open string or number that is not skipped.
    carry: Vec<u8>,
    /// Bit `i` is set when container `i + 1`, counted from the outside, is an object.
    objects: u64,
    depth: u32,
    /// Depth of the skipped container, or 0.
    skipped_depth: u32,
    skip_next: bool,
    /// Bytes of earlier chunks.
    seen: u64,
}

impl Scanner {
    /// A scanner at the start of a document.
    pub(super) fn new() -> Self {
        Self {
            expect: Expect::Value,
            open: Open::No,
            carry: Vec::new(),
            objects: 0,
            depth: 0,
            skipped_depth: 0,
            skip_next: false,
            seen: 0,
        }
    }

    /// Scans the next bytes of the document. After an error the scanner must not be used again.
    pub(super) fn feed<S: Sink>(&mut self, chunk: &[u8], sink: &mut S) -> Result<(), S::Error> {
        let mut at = self.resume(chunk, sink)?;
        while let Some(&byte) = chunk.get(at) {
            if matches!(byte, b' ' | b'\n' | b'\t' | b'\r') {
                at += 1;
                continue;
            }
            at = match (self.expect, byte) {
                (Expect::CommaOrEnd, b',') => self.comma(chunk, at, sink),
                (Expect::Name | Expect::NameOrEnd, b'"') => self.text(chunk, at, true, sink)?,
                (Expect::Colon, b':') => {
                    self.expect = Expect::Value;
                    at + 1
                }
                (Expect::Value | Expect::ValueOrEnd, b'"') => self.text(chunk, at, false, sink)?,
                (Expect::Value | Expect::ValueOrEnd, b'-' | b'0'..=b'9') => self.number(chunk, at, sink)?,
                (Expect::Value | Expect::ValueOrEnd, b'{') => {
                    self.begin(Container::Object, chunk, at, sink)?
                }
                (Expect::Value | Expect::ValueOrEnd, b'[') => {
                    self.begin(Container::Array, chunk, at, sink)?
                }
                (Expect::Value | Expect::ValueOrEnd, b'n') => self.word(Word::Null, 0, chunk, at, sink)?,
                (Expect::Value | Expect::ValueOrEnd, b't') => self.word(Word::True, 0, chunk, at, sink)?,
                (Expect::Value | Expect::ValueOrEnd, b'f') => self.word(Word::False, 0, chunk, at, sink)?,
                (Expect::CommaOrEnd | Expect::NameOrEnd, b'}') if self.in_object() => self.end(at, sink)?,
                (Expect::CommaOrEnd | Expect::ValueOrEnd, b']') if !self.in_object() => self.end(at, sink)?,
                _ => return Err(self.unexpected(at, byte).into()),
            };
        }
        self.seen += chunk.len() as u64;
        Ok(())
    }

    /// Ends the document. Fails if the document is incomplete.
    pub(super) fn finish(&self) -> Result<(), ScanError> {
        if self.expect == Expect::Nothing {
            return Ok(());
        }
        Err(ScanError::Truncated { at: self.seen })
    }

    /// Continues the token that was cut off at the end of the last chunk. Returns the index of the token's
    /// end.
    fn resume<S: Sink>(&mut self, chunk: &[u8], sink: &mut S) -> Result<usize, S::Error> {
        match self.open {
            Open::No => Ok(0),
            Open::Text { is_name, escaped } => self.text_body(chunk, 0, is_name, escaped, sink),
            Open::Number => self.number(chunk, 0, sink),
            Open::Word { word, matched } => self.word(word, matched, chunk, 0, sink),
        }
    }

    fn in_object(&self) -> bool {
        // The shift is safe, because it is reached only while a container is open.
        self.depth > 0 && (self.objects >> (self.depth - 1)) & 1 == 1
    }

    /// Whether the sink skips the value that begins now.
    fn is_skipped(&self) -> bool {
        self.skipped_depth > 0 || self.skip_next
    }

    fn unexpected(&self, at: usize, byte: u8) -> ScanError {
        ScanError::Unexpected { at: self.seen + at as u64, byte }
    }

    fn comma<S: Sink>(&mut self, chunk: &[u8], at: usize, sink: &mut S) -> usize {
        if self.in_object() {
            self.expect = Expect::Name;
            return at + 1;
        }
        self.expect = Expect::Value;
        self.run(chunk, at + 1, sink)
    }

    /// Takes elements of an array from `at` on. Returns the index of the next element.
    fn run<S: Sink>(&mut self, chunk: &[u8], at: usize, sink: &mut S) -> usize {
        // An element of a run may be an object. In the deepest array, an object would exceed `DEPTH_MAX`.
        if self.depth == DEPTH_MAX {
            return at;
        }
        let rest = chunk.get(at..).unwrap_or_default();
        let taken = if self.skipped_depth > 0 { skip::run(rest) } else { sink.run(rest) };
        if taken > 0 {
            // The last byte was a comma.
            self.expect = Expect::Value;
        }
        at + taken
    }

    fn value_ended(&mut self) {
        self.skip_next = false;
        self.expect = if self.depth == 0 { Expect::Nothing } else { Expect::CommaOrEnd };
    }

    fn begin<S: Sink>(
        &mut self,
        container: Container,
        chunk: &[u8],
        at: usize,
        sink: &mut S,
    ) -> Result<usize, S::Error> {
        if self.depth == DEPTH_MAX {
            return Err(ScanError::Deep { at: self.seen + at as u64 }.into());
        }
        let bit = 1 << self.depth;
        self.depth += 1;
        self.expect = match container {
            Container::Object => {
                self.objects |= bit;
                Expect::NameOrEnd
            }
            Container::Array => {
                self.objects &= !bit;
                Expect::ValueOrEnd
            }
        };
        if self.skip_next {
            self.skipped_depth = self.depth;
            self.skip_next = false;
        }
        if self.skipped_depth == 0 {
            sink.begin(container)?;
        }
        match container {
            Container::Object => Ok(at + 1),
            Container::Array => Ok(self.run(chunk, at + 1, sink)),
        }
    }

    fn end<S: Sink>(&mut self, at: usize, sink: &mut S) -> Result<usize, S::Error> {
        if self.skipped_depth == 0 {
            sink.end()?;
        } else if self.skipped_depth == self.depth {
            self.skipped_depth = 0;
        }
        self.depth -= 1;
        self.value_ended();
        Ok(at + 1)
    }

    fn text<S: Sink>(
        &mut self,
        chunk: &[u8],
        at: usize,
        is_name: bool,
        sink: &mut S,
    ) -> Result<usize, S::Error> {
        self.carry.clear();
        self.text_body(chunk, at + 1, is_name, false, sink)
    }

    /// Scans from inside a string to its closing quote, or to the end of the chunk.
    fn text_body<S: Sink>(
        &mut self,
        chunk: &[u8],
        start: usize,
        is_name: bool,
        escaped: bool,
        sink: &mut S,
    ) -> Result<usize, S::Error> {
        let skipped = if is_name { self.skipped_depth > 0 } else { self.is_skipped() };
        let mut from = start + usize::from(escaped);
        if skipped {
            from = skip::string_rest(chunk, from);
        }
        let quote = loop {
            // If the last byte so far is the backslash of an escape, `from` is one beyond the end of the
            // chunk.
            let Some(rest) = chunk.get(from..) else { break None };
            match find_quote_or_backslash(rest) {
                None => break None,
                Some(offset) if rest[offset] == b'"' => break Some(from + offset),
                Some(offset) => from += offset + 2,
            }
        };
        let Some(quote_at) = quote else {
            if !skipped {
                self.carry.extend_from_slice(&chunk[start..]);
            }
            self.open = Open::Text { is_name, escaped: from > chunk.len() };
            return Ok(chunk.len());
        };
        self.open = Open::No;
        let piece = &chunk[start..quote_at];
        if is_name {
            self.expect = Expect::Colon;
        }
        if !skipped {
            let carried = std::mem::take(&mut self.carry);
            let joined;
            let raw = if carried.is_empty() {
                piece
            } else {
                joined = [&carried, piece].concat();
                &joined
            };
            if is_name {
                self.skip_next = sink.name(raw)? == Interest::Skip;
            } else {
                sink.string(raw)?;
            }
        }
        if !is_name {
            self.value_ended();
        }
        Ok(quote_at + 1)
    }

    /// Scans a number from its first byte, or from its continuation if it was cut off at the end of the last
    /// chunk.
    fn number<S: Sink>(&mut self, chunk: &[u8], start: usize, sink: &mut S) -> Result<usize, S::Error> {
        let resumed = self.open == Open::Number;
        if !resumed {
            self.carry.clear();
        }
        let mut end = start;
        while chunk
            .get(end)
            .is_some_and(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'-' | b'+' | b'e' | b'E'))
        {
            end += 1;
        }
        let piece = &chunk[start..end];
        let skipped = self.is_skipped();
        // At the end of the chunk, the number may continue in the next chunk.
        if end == chunk.len() {
            if !skipped {
                self.carry.extend_from_slice(piece);
            }
            self.open = Open::Number;
            return Ok(end);
        }
        self.open = Open::No;
        if skipped {
            // The sink skips this number.
        } else if resumed {
            self.carry.extend_from_slice(piece);
            sink.number(&self.carry)?;
        } else {
            sink.number(piece)?;
        }
        self.value_ended();
        Ok(end)
    }

    /// Scans a word. Its first `matched` bytes have been seen.
    fn word<S: Sink>(
        &mut self,
        word: Word,
        matched: usize,
        chunk: &[u8],
        start: usize,
        sink: &mut S,
    ) -> Result<usize, S::Error> {
        let wanted: &[u8] = match word {
            Word::Null => b"null",
            Word::True => b"true",
            Word::False => b"false",
        };
        let mut at = start;
        for (index, expected) in wanted.iter().enumerate().skip(matched) {
            let Some(byte) = chunk.get(at) else {
                self.open = Open::Word { word, matched: index };
                return Ok(at);
            };
            if byte != expected {
                return Err(self.unexpected(at, *byte).into());
            }
            at += 1;
        }
        self.open = Open::No;
        if !self.is_skipped() {
            sink.word(word)?;
        }
        self.value_ended();
        Ok(at)
    }
}

#[cfg(test)]
mod tests;
