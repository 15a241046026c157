//! Reads and writes JSON lines.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;

use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::file::{Pipe, Unfinished};

/// Maximum bytes of a line, without its line feed.
const LINE_BYTES_MAX: u64 = 256 << 20;

/// Some programs begin a text file with this mark.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A row. Its keys keep their order.
pub(super) type Row = Map<String, Value>;

/// The error of a wrong row. It names the file and the line.
#[derive(Debug, thiserror::Error)]
#[error("{file}:{line}: {reason}")]
pub(super) struct RowError {
    file: String,
    line: u64,
    reason: String,
}

/// The number of a line, and its row.
pub(super) type Numbered = (u64, Row);

/// Calls `change` with each row of `input` and its line number, and writes the changed rows.
pub(super) fn each(
    input: &Path,
    output: Option<&Path>,
    mut change: impl FnMut(u64, &mut Row) -> Result<(), String>,
) -> anyhow::Result<()> {
    each_batch(input, output, 1, |rows| {
        rows.iter_mut().try_for_each(|(line, row)| change(*line, row).map_err(|reason| (*line, reason)))
    })
}

/// Changes up to `rows_max` rows at a time. An error of `change` names the line of its row.
pub(super) fn each_batch(
    input: &Path,
    output: Option<&Path>,
    rows_max: usize,
    mut change: impl FnMut(&mut [Numbered]) -> Result<(), (u64, String)>,
) -> anyhow::Result<()> {
    let mut reader = Input::open(input)?;
    let mut writer = Output::open(output)?;
    let mut has_rows = false;
    loop {
        let mut rows = Vec::new();
        while rows.len() < rows_max
            && let Some(row) = reader.next()?
        {
            rows.push(row);
        }
        if rows.is_empty() {
            anyhow::ensure!(has_rows, "{}: expected JSON lines, found no row", reader.name);
            return writer.finish();
        }
        has_rows = true;
        change(&mut rows).map_err(|(line, reason)| reader.wrong(line, reason))?;
        for (_, row) in &rows {
            writer.write(row)?;
        }
    }
}

struct Input {
    name: String,
    reader: BufReader<Box<dyn Read>>,
    line: u64,
    text: Vec<u8>,
}

impl Input {
    fn open(input: &Path) -> anyhow::Result<Self> {
        let is_standard = input == Path::new("-");
        let name = if is_standard { "standard input".to_owned() } else { input.display().to_string() };
        let reader: Box<dyn Read> = match is_standard {
            true => Box::new(io::stdin().lock()),
            false => Box::new(File::open(input).with_context(|| format!("cannot read {name}"))?),
        };
        Ok(Self { name, reader: BufReader::with_capacity(1 << 16, reader), line: 0, text: Vec::new() })
    }

    fn wrong(&self, line: u64, reason: String) -> RowError {
        RowError { file: self.name.clone(), line, reason }
    }

    fn next(&mut self) -> anyhow::Result<Option<Numbered>> {
        loop {
            self.text.clear();
            let read = (&mut self.reader).take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut self.text);
            if read.with_context(|| format!("cannot read {}", self.name))? == 0 {
                return Ok(None);
            }
            self.line += 1;
            if self.text.len() as u64 > LINE_BYTES_MAX && self.text.last() != Some(&b'\n') {
                let reason = format!("expected a line of at most bytes_max={LINE_BYTES_MAX}");
                return Err(self.wrong(self.line, reason).into());
            }
            let text = match self.text.strip_prefix(BYTE_ORDER_MARK) {
                Some(rest) if self.line == 1 => rest,
                _ => self.text.as_slice(),
            };
            if text.trim_ascii().is_empty() {
                continue;
            }
            let row = serde_json::from_slice(text).map_err(|error| {
                // Each line is parsed alone, so the error itself names line 1.
                let words = error.to_string();
                let reason = words.split(" at line ").next().unwrap_or_default();
                let column = error.column();
                self.wrong(self.line, format!("expected a JSON object: {reason}, column={column}"))
            })?;
            return Ok(Some((self.line, row)));
        }
    }
}

/// The value of a key, or a message that names what was expected.
pub(super) fn value<T: DeserializeOwned>(row: &Row, key: &str, expected: &str) -> Result<T, String> {
    optional(row, key, expected)?.ok_or_else(|| format!("{key}: expected {expected}, found nothing"))
}

/// The value of a key that may be absent or null.
pub(super) fn optional<T: DeserializeOwned>(
    row: &Row,
    key: &str,
    expected: &str,
) -> Result<Option<T>, String> {
    match row.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(found) => T::deserialize(found).map(Some).map_err(|_| {
            let shown: String = found.to_string().chars().take(60).collect();
            format!("{key}: expected {expected}, found {shown}")
        }),
    }
}

/// A value as JSON; null if JSON cannot represent it.
pub(super) fn json(value: impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}

struct Output {
    name: String,
    /// The file, which gets its name when it is whole. Standard output has none.
    file: Option<Unfinished>,
    writer: BufWriter<Box<dyn Write>>,
}

impl Output {
    fn open(output: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = output else {
            let writer: Box<dyn Write> = Box::new(Pipe(io::stdout()));
            return Ok(Self {
                name: "standard output".to_owned(),
                file: None,
                writer: BufWriter::new(writer),
            });
        };
        let file = Unfinished::create(path)?;
        let writer: Box<dyn Write> = Box::new(file.writer()?);
        Ok(Self { name: path.display().to_string(), file: Some(file), writer: BufWriter::new(writer) })
    }

    fn write(&mut self, row: &Row) -> anyhow::Result<()> {
        let written = serde_json::to_writer(&mut self.writer, row).map_err(io::Error::from);
        let ended = written.and_then(|()| self.writer.write_all(b"\n"));
        ended.with_context(|| format!("cannot write {}", self.name))
    }

    fn finish(mut self) -> anyhow::Result<()> {
        self.writer.flush().with_context(|| format!("cannot write {}", self.name))?;
        drop(self.writer);
        self.file.map_or(Ok(()), |file| file.finish().map(drop))
    }
}
