//! JSON lines in, JSON lines out.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;

use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::cli::file::{Pipe, Unfinished};

/// The longest line; bytes.
const LINE_BYTES_MAX: u64 = 256 << 20;

/// A row as it was read; its keys keep their order.
pub(super) type Row = Map<String, Value>;

/// What is wrong with a row.
#[derive(Debug, thiserror::Error)]
#[error("{file}:{line}: {reason}")]
pub(super) struct RowError {
    file: String,
    line: u64,
    reason: String,
}

/// Has `change` called on each row of `input`, with its line number, and writes what it leaves.
pub(super) fn each(
    input: &Path,
    output: Option<&Path>,
    mut change: impl FnMut(u64, &mut Row) -> Result<(), String>,
) -> anyhow::Result<()> {
    let name =
        if input == Path::new("-") { "standard input".to_owned() } else { input.display().to_string() };
    let reader: Box<dyn Read> = if input == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(input).with_context(|| format!("cannot read {name}"))?)
    };
    let mut reader = BufReader::with_capacity(1 << 16, reader);
    let mut writer = Output::open(output)?;
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        let read = (&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut text);
        if read.with_context(|| format!("cannot read {name}"))? == 0 {
            break;
        }
        let wrong = |reason: String| RowError { file: name.clone(), line, reason };
        if text.len() as u64 == LINE_BYTES_MAX && text.last() != Some(&b'\n') {
            return Err(wrong(format!("the line is longer than bytes={LINE_BYTES_MAX}")).into());
        }
        if text.trim_ascii().is_empty() {
            continue;
        }
        let mut row: Row = serde_json::from_slice(&text)
            .map_err(|error| wrong(format!("expected a JSON object: {error}")))?;
        change(line, &mut row).map_err(wrong)?;
        writer.write(&row)?;
    }
    writer.finish()
}

/// The value of a key, or what was expected there.
pub(super) fn value<T: DeserializeOwned>(row: &Row, key: &str, expected: &str) -> Result<T, String> {
    optional(row, key, expected)?.ok_or_else(|| format!("{key} is not there; expected {expected}"))
}

/// The same for a key that may be absent or null.
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

/// A number that JSON can hold, or null.
pub(super) fn json(value: impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}

enum Output {
    Whole(Unfinished, BufWriter<File>),
    Pipe(BufWriter<Pipe>),
}

impl Output {
    fn open(name: Option<&Path>) -> anyhow::Result<Self> {
        let Some(name) = name else { return Ok(Self::Pipe(BufWriter::new(Pipe(io::stdout())))) };
        let file = Unfinished::create(name)?;
        let writer = file.writer()?;
        Ok(Self::Whole(file, writer))
    }

    fn write(&mut self, row: &Row) -> anyhow::Result<()> {
        let writer: &mut dyn Write = match self {
            Self::Whole(_, writer) => writer,
            Self::Pipe(writer) => writer,
        };
        serde_json::to_writer(&mut *writer, row)?;
        Ok(writer.write_all(b"\n")?)
    }

    fn finish(self) -> anyhow::Result<()> {
        match self {
            Self::Whole(file, mut writer) => {
                writer.flush()?;
                drop(writer);
                file.finish().map(drop)
            }
            Self::Pipe(mut writer) => Ok(writer.flush()?),
        }
    }
}
