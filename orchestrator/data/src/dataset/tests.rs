use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, ListArray, RecordBatch, StringArray, StructArray, TimestampMicrosecondArray,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field};
use parquet::arrow::ArrowWriter;

use super::{Dataset, DatasetConfig, DatasetReport};
use crate::{DataError, Duplicates, OverlongPrompts, Prompt, PromptSource, TextCodec};

fn config(files: &[PathBuf]) -> DatasetConfig {
    DatasetConfig {
        files: files.to_vec(),
        columns: None,
        max_prompt_length: 4096,
        overlong_prompts: OverlongPrompts::Drop,
        duplicates: Duplicates::Keep,
        shuffle: false,
        seed: 0,
        epochs: Some(1),
    }
}

fn open_lines(lines: &str, duplicates: Duplicates) -> Result<Dataset, DataError> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("some.jsonl");
    fs::write(&file, lines).unwrap();
    // The folder is deleted when this function returns: an open data set does not need its files.
    Dataset::open(DatasetConfig { duplicates, ..config(&[file]) })
}

fn prompts(dataset: &Dataset) -> Vec<Prompt> {
    let mut cursor = dataset.pass(Arc::new(TextCodec::builtin().unwrap()));
    std::iter::from_fn(|| cursor.next().unwrap()).collect()
}

fn own_data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data")
}

fn shared_data(name: &str) -> Option<PathBuf> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(name);
    if file.is_file() {
        return Some(file);
    }
    eprintln!("skipped: no data set at {}", file.display());
    None
}

const FOUR_ROWS: &str = "{\"prompt\":\"a\",\"answer\":\"1\"}\n{\"prompt\":\"b\",\"answer\":\"2\"}\n\
                         {\"prompt\":\"a\",\"answer\":\"1\"}\n{\"prompt\":\"a\",\"answer\":\"3\"}\n";

#[test]
fn duplicates_are_counted_and_kept_or_dropped() {
    let kept = open_lines(FOUR_ROWS, Duplicates::Keep).unwrap();
    let expected = DatasetReport {
        rows_read: 4,
        rows: 4,
        duplicates: 1,
        conflicting_prompts: 1,
        sources: [("some".to_owned(), 4)].into(),
        spool_bytes: kept.report().spool_bytes,
    };
    assert_eq!(*kept.report(), expected);
    assert_eq!(
        kept.report().to_string(),
        "4 rows, 1 exact duplicates kept, 1 prompts with conflicting answers (some: 4)"
    );
    let dropped = open_lines(FOUR_ROWS, Duplicates::Drop).unwrap();
    assert_eq!((dropped.rows(), dropped.report().rows_read, dropped.report().duplicates), (3, 4, 1));
    let answers: Vec<Arc<str>> = prompts(&dropped).into_iter().map(|prompt| prompt.answer).collect();
    assert_eq!(answers, ["1".into(), "2".into(), "3".into()]);
}

#[test]
fn a_rows_identity_does_not_depend_on_its_neighbours() {
    let all = prompts(&open_lines(FOUR_ROWS, Duplicates::Keep).unwrap());
    let uids: std::collections::BTreeSet<_> = all.iter().map(|prompt| prompt.uid).collect();
    assert_eq!(uids.len(), 4, "equal rows have the same identity");

    let mut lines: Vec<&str> = FOUR_ROWS.lines().collect();
    lines.reverse();
    let reversed = prompts(&open_lines(&lines.join("\n"), Duplicates::Keep).unwrap());
    assert_eq!(uids, reversed.iter().map(|prompt| prompt.uid).collect());
    let (two, also_two) = (&all[1], &reversed[2]);
    assert_eq!((two.uid, &two.answer), (also_two.uid, &also_two.answer));
    assert_eq!(two.uid.to_string().len(), 16);
}

#[test]
fn an_empty_data_set_is_an_error() {
    let error = open_lines("\n\n", Duplicates::Keep).unwrap_err();
    assert!(matches!(error, DataError::Empty { .. }), "{error}");
    let error = Dataset::open(config(&[])).unwrap_err();
    assert!(matches!(error, DataError::Empty { .. }), "{error}");
}

#[test]
fn files_that_cannot_be_read_are_errors_with_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| Dataset::open(config(&[folder.path().join(name)])).unwrap_err();
    let error = open("absent.jsonl");
    assert!(matches!(error, DataError::Read { .. }) && error.to_string().contains("absent.jsonl"), "{error}");
    let error = open("rows.csv");
    assert!(
        error.to_string().ends_with("expected a name that ends in .jsonl, .ndjson or .parquet"),
        "{error}"
    );
    fs::write(folder.path().join("text.parquet"), "PAR0 this is no Parquet file").unwrap();
    let error = open("text.parquet");
    assert!(error.to_string().contains("not Parquet"), "{error}");
}

/// A DAPO-like file of `rows` rows in row groups of 100, and the same rows as JSONL.
fn write_both_formats(folder: &Path, rows: usize) -> (PathBuf, PathBuf) {
    let numbers: Vec<String> = (0..rows).map(|row| row.to_string()).collect();
    let contents: Vec<String> =
        numbers.iter().map(|row| format!("What comes after {row}?\n\"答\"")).collect();
    let text = |values: &[String]| Arc::new(StringArray::from(values.to_vec())) as ArrayRef;
    let field = |name: &str| Arc::new(Field::new(name, DataType::Utf8, true));
    let roles = vec!["user".to_owned(); rows];
    let messages =
        StructArray::from(vec![(field("content"), text(&contents)), (field("role"), text(&roles))]);
    let item = Arc::new(Field::new("item", messages.data_type().clone(), true));
    let one_each = OffsetBuffer::from_lengths(std::iter::repeat_n(1, rows));
    let prompt = Arc::new(ListArray::new(item, one_each, Arc::new(messages), None)) as ArrayRef;
    let reward_model = Arc::new(StructArray::from(vec![(field("ground_truth"), text(&numbers))])) as ArrayRef;
    let batch = RecordBatch::try_from_iter([("prompt", prompt), ("reward_model", reward_model)]).unwrap();

    let parquet_file = folder.join("both.parquet");
    let properties =
        parquet::file::properties::WriterProperties::builder().set_max_row_group_row_count(Some(100)).build();
    let file = fs::File::create(&parquet_file).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();

    let lines: Vec<String> = contents
        .iter()
        .zip(&numbers)
        .map(|(content, number)| {
            let message = serde_json::json!({ "content": content, "role": "user" });
            serde_json::json!({ "prompt": [message], "reward_model": { "ground_truth": number } }).to_string()
        })
        .collect();
    let jsonl_file = folder.join("both.jsonl");
    fs::write(&jsonl_file, lines.join("\n")).unwrap();
    (parquet_file, jsonl_file)
}

#[test]
fn both_formats_give_the_same_prompts() {
    let folder = tempfile::tempdir().unwrap();
    let (parquet_file, jsonl_file) = write_both_formats(folder.path(), 730);
    let from_parquet = prompts(&Dataset::open(config(&[parquet_file])).unwrap());
    let from_jsonl = prompts(&Dataset::open(config(&[jsonl_file])).unwrap());
    assert_eq!(from_parquet.len(), 730);
    for (one, other) in from_parquet.iter().zip(&from_jsonl) {
        assert_eq!(
            (one.uid, &one.ids, &one.answer, &one.fields),
            (other.uid, &other.ids, &other.answer, &other.fields)
        );
    }
}

#[test]
fn the_error_of_a_bad_parquet_row_names_its_number() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("holes.parquet");
    let asks: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), Some("b"), None]));
    let answers: ArrayRef = Arc::new(StringArray::from(vec!["1", "2", "3"]));
    let batch =
        RecordBatch::try_from_iter_with_nullable([("prompt", asks, true), ("answer", answers, false)])
            .unwrap();
    let mut writer = ArrowWriter::try_new(fs::File::create(&file).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let message = Dataset::open(config(&[file])).unwrap_err().to_string();
    assert!(message.contains("holes.parquet: row 3: column=prompt: expected text"), "{message}");
    assert!(message.ends_with("found null"), "{message}");
}

/// pandas and pyarrow write a moment in UTC as a timestamp with the zone `UTC`.
#[test]
fn a_parquet_file_may_have_a_timestamp_in_utc() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("dated.parquet");
    let columns: [(&str, ArrayRef); 3] = [
        ("prompt", Arc::new(StringArray::from(vec!["What is 1 + 1?"]))),
        ("answer", Arc::new(StringArray::from(vec!["2"]))),
        (
            "created_at",
            Arc::new(TimestampMicrosecondArray::from(vec![1_700_000_000_000_000]).with_timezone("UTC")),
        ),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer = ArrowWriter::try_new(fs::File::create(&file).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    assert_eq!(prompts(&Dataset::open(config(&[file])).unwrap()).len(), 1);
}

#[test]
fn our_own_data_set_is_sound() {
    let train = Dataset::open(config(&[own_data().join("arithmetic/train.jsonl")])).unwrap();
    let validation = Dataset::open(config(&[own_data().join("arithmetic/validation.jsonl")])).unwrap();
    assert_eq!((train.rows(), validation.rows()), (2_000, 64));
    assert_eq!((train.report().duplicates, train.report().conflicting_prompts), (0, 0));
    let drawn = prompts(&train);
    assert!(
        drawn.iter().all(|prompt| &*prompt.source == "rolldock/arithmetic" && prompt.difficulty.is_some())
    );
    assert!(drawn.iter().all(|prompt| prompt.answer.parse::<i128>().is_ok()));
    let share = |low: f32, high: f32| {
        let within = |prompt: &&Prompt| prompt.difficulty.is_some_and(|level| (low..=high).contains(&level));
        drawn.iter().filter(within).count() as f64 / drawn.len() as f64
    };
    assert!(share(0.0, 0.3) > 0.15 && share(0.3, 0.8) > 0.3 && share(0.9, 1.0) > 0.15);
    let both: std::collections::BTreeSet<_> = drawn.iter().map(|prompt| &prompt.text).collect();
    assert!(prompts(&validation).iter().all(|prompt| !both.contains(&prompt.text)));
    let lengths = train.measure(&TextCodec::builtin().unwrap()).unwrap();
    assert!(lengths.max < 256 && lengths.overlong == 0, "{lengths:?}");
}

#[test]
fn the_generators_reproduce_the_committed_files() {
    let folder = tempfile::tempdir().unwrap();
    for script in ["generate.py", "train_tokenizer.py"] {
        let path = own_data().join(script);
        let run = Command::new("python3").arg(path).arg("--out").arg(folder.path()).output();
        let Ok(run) = run else {
            eprintln!("skipped: no python3 to run {script}");
            return;
        };
        assert!(run.status.success(), "{script}: {}", String::from_utf8_lossy(&run.stderr));
    }
    for file in ["arithmetic/train.jsonl", "arithmetic/validation.jsonl", "tokenizer/tokenizer.json"] {
        let committed = fs::read(own_data().join(file)).unwrap();
        let made = fs::read(folder.path().join(file)).unwrap();
        assert!(committed == made, "{file} is not what its generator writes");
    }
}

#[test]
fn dapo_math_17k_has_the_known_facts() {
    let Some(file) = shared_data("dapo_math_17k.svs.parquet") else { return };
    let dataset = Dataset::open(config(std::slice::from_ref(&file))).unwrap();
    let report = dataset.report();
    eprintln!("{report}; {} spool bytes", report.spool_bytes);
    assert_eq!((report.rows, report.conflicting_prompts), (17_917, 11));
    // There are 17,290 distinct prompts. Of the 627 other rows, 11 have an answer that differs from that of
    // the prompt's first row.
    assert_eq!(report.duplicates, 627 - 11);
    let drawn = prompts(&dataset);
    let beyond_64_bits = drawn.iter().filter(|prompt| prompt.answer.parse::<i64>().is_err());
    let beyond_64_bits: Vec<&str> = beyond_64_bits.map(|prompt| &*prompt.answer).collect();
    assert_eq!(beyond_64_bits.len(), 3, "{beyond_64_bits:?}");
    assert!(beyond_64_bits.iter().all(|answer| answer.bytes().all(|byte| byte.is_ascii_digit())));
    assert_eq!(drawn.iter().filter(|prompt| prompt.answer.starts_with('-')).count(), 366);
    let uids: std::collections::HashSet<_> = drawn.iter().map(|prompt| prompt.uid).collect();
    assert_eq!(uids.len(), 17_917);

    let dropping = DatasetConfig { duplicates: Duplicates::Drop, ..config(&[file]) };
    assert_eq!(Dataset::open(dropping).unwrap().rows(), 17_917 - report.duplicates);
}

#[test]
fn gsm8k_and_math_500_are_recognised() {
    let (Some(gsm8k), Some(math)) =
        (shared_data("gsm8k_test.jsonl"), shared_data("math500_test.prm800k.jsonl"))
    else {
        return;
    };
    let dataset = Dataset::open(config(&[gsm8k, math])).unwrap();
    let expected = [("HuggingFaceH4/MATH-500".to_owned(), 500), ("openai/gsm8k".to_owned(), 1_319)];
    assert_eq!(dataset.report().sources, expected.into());
    let drawn = prompts(&dataset);
    assert_eq!((&*drawn[0].answer, &*drawn[1].answer), ("18", "3"));
    assert!(drawn[..1_319].iter().all(|prompt| prompt.answer.parse::<f64>().is_ok()));
    assert_eq!(&*drawn[1_319].answer, r"\left( 3, \frac{\pi}{2} \right)");
}
