//! A data set, whose files are read once, checked row by row, and kept on disk.
//!
//! All malformed rows are found when the data set is opened, not hours later in a run. The length of a prompt
//! depends on the tokenizer and is measured when the prompt is drawn; see [`DatasetCursor`].

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use crate::cursor::{DatasetCursor, Order};
use crate::prompt::{row_hashes, row_uid};
use crate::reader::{RowLocation, for_each_row};
use crate::schema::{Row, Schema};
use crate::spool::{IdentifiedRows, SpoolWriter};
use crate::{Columns, DataError, DatasetConfig, Duplicates, PromptContent, PromptUid, TextCodec};

/// Maximum number of rows of a data set. The order of an epoch takes four bytes per row.
const ROWS_MAX: u64 = u32::MAX as u64;

/// Maximum number of sources that a report names.
const SOURCES_MAX: usize = 16;

/// Number of prompts that are tokenised together when lengths are measured.
const MEASURE_ROWS: usize = 1024;

/// Counts of the rows in the files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DatasetReport {
    /// Rows that were read.
    pub rows_read: u64,
    /// Rows that can be drawn: the rows that were read, without dropped duplicates.
    pub rows: u64,
    /// Rows with the prompt and the answer of an earlier row.
    pub duplicates: u64,
    /// Prompts that occur with several different answers. All of their rows are kept.
    pub conflicting_prompts: u64,
    /// Number of rows of each source, for the first 16 sources at most.
    pub sources: BTreeMap<String, u64>,
    /// Bytes of the temporary file.
    pub spool_bytes: u64,
}

impl fmt::Display for DatasetReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dropped = self.rows_read - self.rows;
        let fate = if dropped > 0 { "dropped" } else { "kept" };
        write!(formatter, "{} rows", self.rows)?;
        if self.duplicates > 0 {
            write!(formatter, ", {} exact duplicates {fate}", self.duplicates)?;
        }
        if self.conflicting_prompts > 0 {
            write!(formatter, ", {} prompts with conflicting answers", self.conflicting_prompts)?;
        }
        let sources: Vec<String> =
            self.sources.iter().map(|(name, rows)| format!("{name}: {rows}")).collect();
        write!(formatter, " ({})", sources.join(", "))
    }
}

/// Lengths of prompts, in tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct PromptLengths {
    /// The length of the longest prompt.
    pub max: usize,
    /// The mean length over all rows.
    pub mean: f64,
    /// Number of prompts above `max_prompt_length`.
    pub overlong: u64,
}

/// An opened data set; cheap to clone.
///
/// ```
/// use std::sync::Arc;
///
/// use rolldock_data::{Dataset, DatasetConfig, Duplicates, OverlongPrompts, PromptSource, TextCodec};
///
/// # let folder = tempfile::tempdir()?;
/// let file = folder.path().join("train.jsonl");
/// std::fs::write(&file, r#"{"prompt": "What is 6 x 7?", "answer": "42"}"#)?;
/// let dataset = Dataset::open(DatasetConfig {
///     files: vec![file],
///     columns: None,
///     max_prompt_length: 256,
///     overlong_prompts: OverlongPrompts::Drop,
///     duplicates: Duplicates::Keep,
///     shuffle: true,
///     seed: 1,
///     epochs: Some(1),
/// })?;
/// assert_eq!(dataset.rows(), 1);
///
/// let mut cursor = dataset.cursor(Arc::new(TextCodec::builtin()?));
/// let prompt = cursor.next()?.ok_or("a prompt was expected")?;
/// assert_eq!(&*prompt.answer, "42");
/// assert!(!prompt.ids.is_empty());
/// assert!(cursor.next()?.is_none(), "the only epoch is over");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Dataset {
    config: Arc<DatasetConfig>,
    rows: Arc<IdentifiedRows>,
    report: Arc<DatasetReport>,
}

impl Dataset {
    /// Reads and checks every row. Blocks, for about a second per 100,000 rows.
    pub fn open(config: DatasetConfig) -> Result<Self, DataError> {
        let mut scan = Scan::new(config.duplicates)?;
        for file in &config.files {
            scan.read_file(file, config.columns.as_ref())?;
        }
        let (rows, report) = scan.finish()?;
        if report.rows == 0 {
            let names: Vec<String> = config.files.iter().map(|file| file.display().to_string()).collect();
            return Err(DataError::Empty { files: names.join(", ") });
        }
        Ok(Self { config: Arc::new(config), rows: Arc::new(rows), report: Arc::new(report) })
    }

    /// Counts of the rows in the files.
    pub fn report(&self) -> &DatasetReport {
        &self.report
    }

    /// Number of rows, at least one.
    pub fn rows(&self) -> u64 {
        self.rows.spool.rows()
    }

    /// A cursor that draws prompts as configured, from the start of the first epoch.
    pub fn cursor(&self, codec: Arc<TextCodec>) -> DatasetCursor {
        let order = match self.config.shuffle {
            true => Order::Shuffled { seed: self.config.seed },
            false => Order::Files,
        };
        self.cursor_with(codec, order, self.config.epochs)
    }

    /// A cursor that draws every prompt once in the order of the files. The configured order and number of
    /// epochs are not used.
    pub fn pass(&self, codec: Arc<TextCodec>) -> DatasetCursor {
        self.cursor_with(codec, Order::Files, Some(1))
    }

    fn cursor_with(&self, codec: Arc<TextCodec>, order: Order, epochs: Option<u32>) -> DatasetCursor {
        let limit = (self.config.max_prompt_length, self.config.overlong_prompts);
        DatasetCursor::new(Arc::clone(&self.rows), codec, order, epochs, limit)
    }

    /// Tokenises every prompt on all cores and returns the lengths. Blocks.
    pub fn measure(&self, codec: &TextCodec) -> Result<PromptLengths, DataError> {
        let rows = self.rows() as usize;
        let mut lengths = PromptLengths::default();
        let mut tokens: u64 = 0;
        for start in (0..rows).step_by(MEASURE_ROWS) {
            let read = |row| self.rows.spool.read(row).map(|record| record.prompt);
            let prompts = (start..rows.min(start + MEASURE_ROWS)).map(read);
            let contents: Vec<PromptContent> = prompts.collect::<Result<_, _>>()?;
            for length in codec.prompt_lengths(&contents)? {
                lengths.max = lengths.max.max(length);
                lengths.overlong += u64::from(length > self.config.max_prompt_length);
                tokens += length as u64;
            }
        }
        lengths.mean = tokens as f64 / rows as f64;
        Ok(lengths)
    }
}

/// The state of the pass over the files.
struct Scan {
    duplicates: Duplicates,
    spool: SpoolWriter,
    uids: Vec<PromptUid>,
    report: DatasetReport,
    /// How often each pair of prompt and answer was seen, by the hash of both.
    occurrences: HashMap<u128, u32>,
    /// By the hash of a prompt: the hash of the prompt with its first answer, and whether another answer has
    /// occurred.
    answers: HashMap<u128, (u128, bool)>,
}

impl Scan {
    fn new(duplicates: Duplicates) -> Result<Self, DataError> {
        Ok(Self {
            duplicates,
            spool: SpoolWriter::create()?,
            uids: Vec::new(),
            report: DatasetReport::default(),
            occurrences: HashMap::new(),
            answers: HashMap::new(),
        })
    }

    fn read_file(&mut self, file: &Path, columns: Option<&Columns>) -> Result<(), DataError> {
        let mut schema: Option<Schema> = None;
        for_each_row(file, |place, json| self.read_row(place, json, &mut schema, columns))
    }

    fn read_row(
        &mut self,
        place: RowLocation<'_>,
        json: &str,
        schema: &mut Option<Schema>,
        columns: Option<&Columns>,
    ) -> Result<(), DataError> {
        let known = match schema.take() {
            Some(known) => known,
            None => Schema::detect(place, json, columns)?,
        };
        let row = schema.insert(known).read(place, json)?;
        self.add(row)
    }

    fn add(&mut self, row: Row) -> Result<(), DataError> {
        self.report.rows_read += 1;
        let occurrence = self.count_occurrence(&row);
        if occurrence > 0 && self.duplicates == Duplicates::Drop {
            return Ok(());
        }
        if self.uids.len() as u64 == ROWS_MAX {
            return Err(DataError::TooManyRows { rows_max: ROWS_MAX });
        }
        if let Some(rows) = self.report.sources.get_mut(&row.source) {
            *rows += 1;
        } else if self.report.sources.len() < SOURCES_MAX {
            self.report.sources.insert(row.source.clone(), 1);
        }
        self.uids.push(row_uid(&row.source, &row.prompt, &row.answer, occurrence));
        self.spool.push(row)
    }

    /// Counts the row. Returns the number of equal rows before it.
    fn count_occurrence(&mut self, row: &Row) -> u32 {
        let (prompt, prompt_and_answer) = row_hashes(&row.prompt, &row.answer);
        let (first_answer, conflicting) = self.answers.entry(prompt).or_insert((prompt_and_answer, false));
        if *first_answer != prompt_and_answer && !*conflicting {
            *conflicting = true;
            self.report.conflicting_prompts += 1;
        }
        let seen = self.occurrences.entry(prompt_and_answer).or_insert(0);
        let before = *seen;
        *seen = seen.saturating_add(1);
        self.report.duplicates += u64::from(before > 0);
        before
    }

    fn finish(self) -> Result<(IdentifiedRows, DatasetReport), DataError> {
        let spool = self.spool.finish()?;
        let report = DatasetReport { rows: spool.rows(), spool_bytes: spool.bytes(), ..self.report };
        Ok((IdentifiedRows { spool, uids: self.uids.into_boxed_slice() }, report))
    }
}

#[cfg(test)]
mod tests;
