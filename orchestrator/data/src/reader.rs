//! Reads the rows of a file one after the other, each as the text of one JSON object.
//!
//! A line of JSONL already is the text of a JSON object, and a row of Parquet is converted to such a text. The
//! code that checks and interprets columns is therefore the same for both formats.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use rolldock_jsonl::{Nulls, write_lines};

use crate::{DataError, RowPlace};

/// Maximum number of bytes of a row. A longer row is an error. A longer line of JSONL is not read to its end.
pub(super) const ROW_BYTES_MAX: u64 = 16 << 20;

/// Number of Parquet rows that are in memory at a time.
const BATCH_ROWS: usize = 256;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The position of a row, with a borrowed file name.
#[derive(Clone, Copy)]
pub(super) struct RowLocation<'a> {
    file: &'a Path,
    format: Format,
    number: u64,
}

impl RowLocation<'_> {
    /// An error about one column of this row.
    pub(super) fn complain(
        &self,
        column: &str,
        expected: &'static str,
        found: impl Into<String>,
    ) -> DataError {
        DataError::Row {
            place: self.into_row_place(),
            column: column.to_owned(),
            expected,
            found: found.into(),
        }
    }

    pub(super) fn into_row_place(self) -> RowPlace {
        match self.format {
            Format::Jsonl => RowPlace::Line(self.file.to_owned(), self.number),
            Format::Parquet => RowPlace::Row(self.file.to_owned(), self.number),
        }
    }

    /// The file's name without its folder and extension.
    pub(super) fn file_stem(&self) -> String {
        self.file.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Jsonl,
    Parquet,
}

/// Calls `visit` with every row of `file` and stops at the first error.
pub(super) fn for_each_row(
    file: &Path,
    visit: impl FnMut(RowLocation<'_>, &str) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let extension = file.extension().map(|extension| extension.to_ascii_lowercase());
    let format = match extension.as_deref().and_then(|extension| extension.to_str()) {
        Some("jsonl" | "ndjson") => Format::Jsonl,
        Some("parquet") => Format::Parquet,
        _ => {
            let reason = "expected a name that ends in .jsonl, .ndjson or .parquet".to_owned();
            return Err(DataError::Format { file: file.to_owned(), reason });
        }
    };
    let opened = File::open(file).map_err(|reason| DataError::Read { file: file.to_owned(), reason })?;
    match format {
        Format::Jsonl => for_each_line(file, opened, visit),
        Format::Parquet => for_each_parquet_row(file, opened, visit),
    }
}

fn for_each_line(
    file: &Path,
    opened: File,
    mut visit: impl FnMut(RowLocation<'_>, &str) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let mut reader = BufReader::with_capacity(1 << 18, opened);
    let mut line = Vec::new();
    let mut place = RowLocation { file, format: Format::Jsonl, number: 0 };
    loop {
        line.clear();
        place.number += 1;
        let length = (&mut reader)
            .take(ROW_BYTES_MAX + 2)
            .read_until(b'\n', &mut line)
            .map_err(|reason| DataError::Read { file: file.to_owned(), reason })?;
        if length == 0 {
            return Ok(());
        }
        if line.strip_suffix(b"\n").unwrap_or(&line).len() as u64 > ROW_BYTES_MAX {
            return Err(place.complain("*", "a line of at most 16 MiB", "a longer one"));
        }
        let bytes = match line.strip_prefix(BYTE_ORDER_MARK) {
            Some(rest) if place.number == 1 => rest,
            _ => line.as_slice(),
        };
        let text = std::str::from_utf8(bytes).map_err(|error| {
            place.complain("*", "UTF-8", format!("an invalid byte after {} bytes", error.valid_up_to()))
        })?;
        if !text.trim_ascii().is_empty() {
            visit(place, text)?;
        }
    }
}

fn for_each_parquet_row(
    file: &Path,
    opened: File,
    mut visit: impl FnMut(RowLocation<'_>, &str) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let bad = |reason: String| DataError::Format { file: file.to_owned(), reason };
    let builder = ParquetRecordBatchReaderBuilder::try_new(opened)
        .map_err(|error| bad(format!("not Parquet: {error}")))?;
    let reader = builder
        .with_batch_size(BATCH_ROWS)
        .build()
        .map_err(|error| bad(format!("unreadable Parquet: {error}")))?;
    let mut place = RowLocation { file, format: Format::Parquet, number: 0 };
    let mut lines = Vec::new();
    for batch in reader {
        let batch = batch
            .map_err(|error| bad(format!("unreadable Parquet near row {}: {error}", place.number + 1)))?;
        lines.clear();
        // Nulls are written, so every row has every column.
        write_lines(&batch, Nulls::Written, &mut lines);
        let text = std::str::from_utf8(&lines)
            .map_err(|error| bad(format!("near row {}: {error}", place.number + 1)))?;
        for line in text.lines() {
            place.number += 1;
            if line.len() as u64 > ROW_BYTES_MAX {
                return Err(place.complain("*", "a row of at most 16 MiB", "a longer one"));
            }
            visit(place, line)?;
        }
    }
    Ok(())
}
