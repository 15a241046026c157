//! Makes the data-set files of a recipe from downloaded files. The results have no duplicates, and no prompt
//! is in both splits.
//!
//! Rows of JSONL files keep their text, and rows of Parquet files are converted to JSON. A row is left out if
//! an earlier row of its split has the same prompt and answer. A training row is also left out if its prompt
//! is in the validation data. If there are no validation files, some training prompts are set apart, by a
//! hash of prompt and seed. The choice depends neither on the order of the rows nor on how often a prompt
//! occurs.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;
use xxhash_rust::xxh3::{Xxh3, xxh3_128_with_seed};

use crate::prompt::row_hashes;
use crate::reader::for_each_row;
use crate::schema::Schema;
use crate::{Columns, DataError};

/// The configuration of [`prepare`]: the files to read and the files to make.
#[derive(Debug, Clone)]
pub struct Prepare {
    /// JSONL and Parquet files for training, which are read in order.
    pub train: Vec<PathBuf>,
    /// Files for validation.
    pub validation: Vec<PathBuf>,
    /// Number of training prompts that are set apart for validation. It has no effect if there are validation
    /// files.
    pub validation_prompts: usize,
    /// The seed that selects these prompts.
    pub seed: u64,
    /// The columns that are read. With `None` the known schemas are recognised.
    pub columns: Option<Columns>,
    /// The JSONL file for training. An existing file is replaced.
    pub train_to: PathBuf,
    /// The JSONL file for validation; `None` if no validation file is made.
    pub validation_to: Option<PathBuf>,
    /// Validation files of the recipe that stay as they are. They may have no prompt of the training file. They have no
    /// effect if a validation file is made.
    pub validation_kept: Vec<PathBuf>,
}

/// The files that were made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// The file for training.
    pub train: Split,
    /// The file for validation.
    pub validation: Option<Split>,
}

/// A file that was made, with counts of its rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Split {
    /// The path of the file.
    pub file: PathBuf,
    /// Rows that were read for this file.
    pub read: u64,
    /// Rows in the file.
    pub rows: u64,
    /// Rows that were left out because an earlier row has the same prompt and answer.
    pub duplicates: u64,
    /// Training rows that were left out because their prompt is in the validation data.
    pub in_validation: u64,
    /// Prompts with several different answers. All of their rows are kept.
    pub conflicting_prompts: u64,
    /// The 128-bit XXH3 hash of the file, as `xxh128sum` prints it.
    pub xxh128: u128,
}

/// Why files cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// A downloaded file cannot be read, or a row of it cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// No rows are left to write.
    #[error("no rows are left for file={}", file.display())]
    Empty {
        /// The file that would be empty.
        file: PathBuf,
    },
    /// A validation file that stays as it is has prompts of the training data.
    #[error(
        "prompts={prompts} of the training data are in file={}, which stays as it is; expected validation data with \
         other prompts: remove the file, or make it again too",
        file.display()
    )]
    InBoth {
        /// The validation file.
        file: PathBuf,
        /// Number of prompts that are in both.
        prompts: usize,
    },
    /// A file cannot be written.
    #[error("cannot write file={}: {reason}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// The operating system's error.
        reason: io::Error,
    },
}

/// Makes the files. Blocks. A file gets its name when it is complete.
///
/// # Errors
/// See [`PrepareError`]. After an error, only the validation file may have been made or replaced.
pub fn prepare(config: &Prepare) -> Result<Prepared, PrepareError> {
    let columns = config.columns.as_ref();
    let Some(validation_to) = &config.validation_to else {
        check_kept(config)?;
        let train = make(&config.train, columns, &config.train_to, &HashSet::new(), |_| true)?;
        return Ok(Prepared { train, validation: None });
    };
    let chosen = match config.validation.is_empty() {
        true => choose(&config.train, columns, config.validation_prompts, config.seed)?,
        false => prompts_of(&config.validation, columns)?,
    };
    let (validation_files, is_apart) = match config.validation.is_empty() {
        true => (&config.train, true),
        false => (&config.validation, false),
    };
    let in_validation = |prompt: &u128| !is_apart || chosen.contains(prompt);
    let validation = make(validation_files, columns, validation_to, &HashSet::new(), in_validation)?;
    let train = make(&config.train, columns, &config.train_to, &chosen, |_| true)?;
    Ok(Prepared { train, validation: Some(validation) })
}

/// Checks that no validation file that stays has a prompt of the training data.
fn check_kept(config: &Prepare) -> Result<(), PrepareError> {
    let columns = config.columns.as_ref();
    if config.validation_kept.is_empty() {
        return Ok(());
    }
    let of_training = prompts_of(&config.train, columns)?;
    for file in &config.validation_kept {
        let prompts = prompts_of(std::slice::from_ref(file), columns)?.intersection(&of_training).count();
        if prompts > 0 {
            return Err(PrepareError::InBoth { file: file.clone(), prompts });
        }
    }
    Ok(())
}

/// Calls `visit` with the JSON of every row, the hash of its prompt, and the hash of its prompt and answer.
fn for_each(
    files: &[PathBuf],
    columns: Option<&Columns>,
    mut visit: impl FnMut(&str, u128, u128) -> Result<(), DataError>,
) -> Result<(), DataError> {
    for file in files {
        let mut schema: Option<Schema> = None;
        for_each_row(file, |place, json| {
            let known = match schema.take() {
                Some(known) => known,
                None => Schema::detect(place, json, columns)?,
            };
            let row = schema.insert(known).read(place, json)?;
            let (prompt, with_answer) = row_hashes(&row.prompt, &row.answer);
            visit(json, prompt, with_answer)
        })?;
    }
    Ok(())
}

fn prompts_of(files: &[PathBuf], columns: Option<&Columns>) -> Result<HashSet<u128>, DataError> {
    let mut prompts = HashSet::new();
    for_each(files, columns, |_, prompt, _| {
        prompts.insert(prompt);
        Ok(())
    })?;
    Ok(prompts)
}

/// The `count` prompts whose hashes with `seed` are smallest.
fn choose(
    files: &[PathBuf],
    columns: Option<&Columns>,
    count: usize,
    seed: u64,
) -> Result<HashSet<u128>, DataError> {
    let mut chosen: BTreeSet<(u128, u128)> = BTreeSet::new();
    for_each(files, columns, |_, prompt, _| {
        chosen.insert((xxh3_128_with_seed(&prompt.to_le_bytes(), seed), prompt));
        if chosen.len() > count {
            chosen.pop_last();
        }
        Ok(())
    })?;
    Ok(chosen.into_iter().map(|(_, prompt)| prompt).collect())
}

/// Writes to `file` the rows of `files` whose prompts are `wanted` and not in `left_out`.
fn make(
    files: &[PathBuf],
    columns: Option<&Columns>,
    file: &Path,
    left_out: &HashSet<u128>,
    wanted: impl Fn(&u128) -> bool,
) -> Result<Split, PrepareError> {
    let cannot = |reason: io::Error| PrepareError::Write { file: file.to_owned(), reason };
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(cannot)?;
    let mut output = BufWriter::with_capacity(1 << 18, NamedTempFile::new_in(folder).map_err(cannot)?);
    let mut split = Split { file: file.to_owned(), ..Split::default() };
    let mut hasher = Xxh3::new();
    let mut seen: HashSet<u128> = HashSet::new();
    let mut answers: HashMap<u128, u32> = HashMap::new();
    let mut failure = None;
    for_each(files, columns, |json, prompt, with_answer| {
        if !wanted(&prompt) || failure.is_some() {
            return Ok(());
        }
        split.read += 1;
        if left_out.contains(&prompt) {
            split.in_validation += 1;
        } else if !seen.insert(with_answer) {
            split.duplicates += 1;
        } else {
            split.rows += 1;
            let of_prompt = answers.entry(prompt).or_insert(0);
            *of_prompt += 1;
            split.conflicting_prompts += u64::from(*of_prompt == 2);
            for bytes in [json.trim_ascii().as_bytes(), b"\n".as_slice()] {
                hasher.update(bytes);
                failure = failure.take().or(output.write_all(bytes).err());
            }
        }
        Ok(())
    })?;
    if let Some(reason) = failure {
        return Err(cannot(reason));
    }
    if split.rows == 0 {
        return Err(PrepareError::Empty { file: file.to_owned() });
    }
    split.xxh128 = hasher.digest128();
    let written = output.into_inner().map_err(|error| cannot(error.into_error()))?;
    readable(written.as_file()).map_err(cannot)?;
    written.persist(file).map_err(|error| cannot(error.error))?;
    Ok(split)
}

/// Gives a temporary file the usual permissions of a data file. At first only its owner can read it.
fn readable(file: &File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))?;
    file.sync_all()
}

#[cfg(test)]
mod tests;
