//! Real answers of GSM8K, DAPO-Math-17k and MATH-500, and all possible answers to a problem of AIME.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;

use anyhow::Context;
use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;

/// A solution or a problem of a data set, and the right answer.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) text: String,
    pub(super) answer: String,
}

/// The path of a data set's file. The data sets are not part of the project; `SOURCES.md` in their folder says
/// where they come from.
fn path(name: &str) -> anyhow::Result<PathBuf> {
    let file = rolldock_bench_figures::shared("data").join(name);
    anyhow::ensure!(
        file.is_file(),
        "expected the data set {}, found no such file; the measurements read shared/data beside the checkout",
        file.display()
    );
    Ok(file)
}

/// Reads a file of JSON lines. `columns` describes what `row` reads of a line.
fn rows_of_json(name: &str, columns: &str, row: impl Fn(&Value) -> Option<Row>) -> anyhow::Result<Vec<Row>> {
    let file = path(name)?;
    let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let rows = text.lines().enumerate().map(|(index, line)| {
        let place = || format!("{}:{}", file.display(), index + 1);
        let value: Value =
            serde_json::from_str(line).with_context(|| format!("{}: expected JSON", place()))?;
        row(&value).with_context(|| format!("{}: expected {columns}, found {line}", place()))
    });
    rows.collect()
}

/// GSM8K's solutions up to the answer, which follows the last "####".
pub(super) fn gsm8k() -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for name in ["gsm8k_train.jsonl", "gsm8k_test.jsonl"] {
        rows.extend(rows_of_json(name, "a string answer with \"#### \"", |row| {
            let (text, answer) = row["answer"].as_str()?.rsplit_once("#### ")?;
            Some(Row { text: text.to_owned(), answer: answer.to_owned() })
        })?);
    }
    Ok(rows)
}

/// MATH-500's solutions.
pub(super) fn math_500() -> anyhow::Result<Vec<Row>> {
    rows_of_json("math500_test.prm800k.jsonl", "the strings solution and answer", |row| {
        Some(Row { text: row["solution"].as_str()?.to_owned(), answer: row["answer"].as_str()?.to_owned() })
    })
}

/// DAPO's problems. They replace the solutions, because this data set has no solutions.
pub(super) fn dapo() -> anyhow::Result<Vec<Row>> {
    let file = path("dapo_math_17k.svs.parquet")?;
    let mut rows = Vec::new();
    let opened = File::open(&file).with_context(|| format!("cannot open {}", file.display()))?;
    let reader = ParquetRecordBatchReaderBuilder::try_new(opened)
        .and_then(ParquetRecordBatchReaderBuilder::build)
        .with_context(|| format!("{}: expected a Parquet file", file.display()))?;
    for batch in reader {
        let batch = batch.with_context(|| format!("cannot read {}", file.display()))?;
        dapo_rows(&batch, &mut rows).with_context(|| {
            format!(
                "{}: expected the columns prompt (content) and reward_model (ground_truth)",
                file.display()
            )
        })?;
    }
    Ok(rows)
}

fn dapo_rows(batch: &RecordBatch, rows: &mut Vec<Row>) -> Option<()> {
    let prompts = batch.column_by_name("prompt")?.as_list_opt::<i32>()?;
    let models = batch.column_by_name("reward_model")?.as_struct_opt()?;
    let truths = models.column_by_name("ground_truth")?.as_string_opt::<i32>()?;
    let values = prompts.iter().zip(truths).map(|(messages, truth)| {
        let contents = messages?.as_struct_opt()?.column_by_name("content")?.clone();
        let text = contents.as_string_opt::<i32>()?.iter().next()??.to_owned();
        Some(Row { text, answer: truth?.to_owned() })
    });
    rows.extend(values.collect::<Option<Vec<_>>>()?);
    Some(())
}

/// A data set and its distinct answers, or every tenth of them in a quick run.
pub(super) struct Answers {
    pub(super) name: &'static str,
    pub(super) answers: Vec<String>,
}

/// The answers from which pairs for the comparison of verdicts are made. The answers to problems of AIME are the
/// integers from 0 to 999.
pub(super) fn answers(quick: bool) -> anyhow::Result<Vec<Answers>> {
    let distinct = |rows: Vec<Row>| {
        let all: BTreeSet<String> = rows.into_iter().map(|row| row.answer).collect();
        Vec::from_iter(all)
    };
    let sets = [
        ("MATH-500", distinct(math_500()?)),
        ("AIME", (0..1000).map(|answer| answer.to_string()).collect()),
        ("GSM8K", distinct(gsm8k()?)),
    ];
    let every = if quick { 10 } else { 1 };
    Ok(sets
        .into_iter()
        .map(|(name, all)| Answers { name, answers: all.into_iter().step_by(every).collect() })
        .collect())
}
