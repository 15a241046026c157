//! Compares the lines with those of `arrow-json`, type by type.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;

use arrow_array::builder::{
    FixedSizeBinaryBuilder, Int64Builder, ListBuilder, ListViewBuilder, MapBuilder, StringBuilder,
    StringRunBuilder, UnionBuilder,
};
use arrow_array::types::{Decimal128Type, Int8Type, Int32Type};
use arrow_array::{
    ArrayRef, BinaryArray, BinaryViewArray, BooleanArray, Date32Array, Date64Array, Decimal128Array,
    Decimal256Array, DictionaryArray, DurationMillisecondArray, DurationSecondArray, FixedSizeListArray,
    Float16Array, Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, Int64Array,
    IntervalDayTimeArray, IntervalMonthDayNanoArray, IntervalYearMonthArray, LargeBinaryArray,
    LargeListArray, LargeStringArray, ListArray, NullArray, StringArray, StringViewArray, StructArray,
    Time32MillisecondArray, Time32SecondArray, Time64MicrosecondArray, Time64NanosecondArray,
    TimestampMicrosecondArray, TimestampMillisecondArray, TimestampNanosecondArray, TimestampSecondArray,
    UInt8Array, UInt16Array, UInt32Array, UInt64Array,
};
use arrow_buffer::{IntervalDayTime, IntervalMonthDayNano, i256};
use arrow_json::WriterBuilder;
use arrow_json::writer::LineDelimited;
use arrow_schema::Field;
use chrono::{DateTime, Utc};
use half::f16;
use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn parsed(lines: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(lines).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "{text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The lines of both writers, as values.
fn both(batch: &RecordBatch, nulls: Nulls) -> (Vec<Value>, Vec<Value>) {
    let mut ours = Vec::new();
    write_lines(batch, nulls, &mut ours);
    let builder = WriterBuilder::new().with_explicit_nulls(nulls == Nulls::Written);
    let mut writer = builder.build::<_, LineDelimited>(Vec::new());
    writer.write(batch).unwrap();
    writer.finish().unwrap();
    (parsed(&ours), parsed(&writer.into_inner()))
}

/// Checks that both writers write the same values for a column of this type, as a column, in a struct, and in
/// a slice.
#[track_caller]
fn check(column: ArrayRef) {
    let name = column.data_type().to_string();
    let field = Arc::new(Field::new("a \"name\"", column.data_type().clone(), true));
    let of_struct = StructArray::from(vec![(field, Arc::clone(&column))]);
    let columns: [(&str, ArrayRef); 2] = [("plain", column), ("in a struct", Arc::new(of_struct))];
    let batch =
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap();
    for batch in [batch.slice(1, batch.num_rows() - 1), batch] {
        for nulls in [Nulls::Omitted, Nulls::Written] {
            let (ours, theirs) = both(&batch, nulls);
            assert_eq!(ours, theirs, "{name} {nulls:?}");
            assert_eq!(ours.len(), batch.num_rows(), "{name}");
        }
    }
}

#[test]
fn numbers_are_those_of_arrow_json() {
    check(Arc::new(NullArray::new(3)));
    check(Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)])));
    check(Arc::new(Int8Array::from(vec![Some(i8::MIN), None, Some(i8::MAX)])));
    check(Arc::new(Int16Array::from(vec![Some(i16::MIN), None, Some(i16::MAX)])));
    check(Arc::new(Int32Array::from(vec![Some(i32::MIN), None, Some(i32::MAX)])));
    check(Arc::new(Int64Array::from(vec![Some(i64::MIN), None, Some(i64::MAX)])));
    check(Arc::new(UInt8Array::from(vec![Some(0), None, Some(u8::MAX)])));
    check(Arc::new(UInt16Array::from(vec![Some(0), None, Some(u16::MAX)])));
    check(Arc::new(UInt32Array::from(vec![Some(0), None, Some(u32::MAX)])));
    check(Arc::new(UInt64Array::from(vec![Some(0), None, Some(u64::MAX)])));
    let halves = [f16::MAX, f16::NAN, f16::INFINITY, f16::from_f32(-0.1)];
    check(Arc::new(Float16Array::from_iter_values(halves)));
    let singles = [f32::MAX, f32::MIN_POSITIVE, f32::NAN, f32::NEG_INFINITY, 0.1, -0.0, 16_777_217.0];
    check(Arc::new(Float32Array::from_iter_values(singles)));
    let doubles = [f64::MAX, f64::MIN_POSITIVE, f64::NAN, f64::INFINITY, 0.1, -0.0, 1e21, 5e-324];
    check(Arc::new(Float64Array::from_iter_values(doubles)));
    let decimals = Decimal128Array::from(vec![Some(-12_345), None, Some(7), Some(0)]);
    check(Arc::new(decimals.clone().with_precision_and_scale(20, 3).unwrap()));
    check(Arc::new(decimals.with_precision_and_scale(20, 0).unwrap()));
    let wide = Decimal256Array::from(vec![Some(i256::from_i128(i128::from(i64::MAX))), None]);
    check(Arc::new(wide.with_precision_and_scale(40, 5).unwrap()));
}

#[test]
fn texts_and_bytes_are_those_of_arrow_json() {
    let texts = [Some("plain"), None, Some("\"quoted\" \\ \n\t\u{1} \u{2028} é 你好 😀"), Some("")];
    check(Arc::new(StringArray::from_iter(texts)));
    check(Arc::new(LargeStringArray::from_iter(texts)));
    check(Arc::new(StringViewArray::from_iter(texts)));
    let bytes = [Some(b"\x00\x7f\xff".as_slice()), None, Some(b"")];
    check(Arc::new(BinaryArray::from_iter(bytes)));
    check(Arc::new(LargeBinaryArray::from_iter(bytes)));
    check(Arc::new(BinaryViewArray::from_iter(bytes)));
    let mut fixed = FixedSizeBinaryBuilder::new(2);
    fixed.append_value(b"\x0a\xb0").unwrap();
    fixed.append_null();
    fixed.append_value(b"\x00\x00").unwrap();
    check(Arc::new(fixed.finish()));
}

#[test]
fn moments_are_those_of_arrow_json() {
    check(Arc::new(Date32Array::from(vec![Some(-1), None, Some(20_000), Some(4_000_000)])));
    check(Arc::new(Date64Array::from(vec![Some(-1), None, Some(1_700_000_000_123)])));
    check(Arc::new(Time32SecondArray::from(vec![Some(0), None, Some(86_399)])));
    check(Arc::new(Time32MillisecondArray::from(vec![Some(1), None, Some(86_399_999)])));
    check(Arc::new(Time64MicrosecondArray::from(vec![Some(1), None, Some(86_399_999_999)])));
    check(Arc::new(Time64NanosecondArray::from(vec![Some(1), None, Some(86_399_999_999_999)])));
    check(Arc::new(DurationSecondArray::from(vec![Some(-90), None, Some(86_400)])));
    check(Arc::new(DurationMillisecondArray::from(vec![Some(1), None, Some(3_600_001)])));
    let seconds = [Some(-1), None, Some(1_700_000_000)];
    check(Arc::new(TimestampSecondArray::from(seconds.to_vec())));
    check(Arc::new(TimestampSecondArray::from(seconds.to_vec()).with_timezone("+02:00")));
    check(Arc::new(TimestampMillisecondArray::from(vec![Some(1), None, Some(1_700_000_000_120)])));
    check(Arc::new(TimestampMicrosecondArray::from(vec![Some(1), None]).with_timezone("+00:00")));
    check(Arc::new(TimestampNanosecondArray::from(vec![Some(1), None]).with_timezone("-05:30")));
}

#[test]
fn a_moment_out_of_range_is_its_number() {
    let column: ArrayRef = Arc::new(TimestampSecondArray::from(vec![i64::MAX, 0]));
    let batch = RecordBatch::try_from_iter([("at", column)]).unwrap();
    let mut lines = Vec::new();
    write_lines(&batch, Nulls::Omitted, &mut lines);
    let expected = "{\"at\":9223372036854775807}\n{\"at\":\"1970-01-01T00:00:00\"}\n";
    assert_eq!(String::from_utf8(lines).unwrap(), expected);
}

#[test]
fn a_moment_whose_local_time_is_out_of_range_is_its_number() {
    // The last second that chrono has, in UTC.
    let last = DateTime::<Utc>::MAX_UTC.timestamp();
    let column = TimestampSecondArray::from(vec![last, 0]).with_timezone("+02:00");
    let batch = RecordBatch::try_from_iter([("at", Arc::new(column) as ArrayRef)]).unwrap();
    let mut lines = Vec::new();
    write_lines(&batch, Nulls::Omitted, &mut lines);
    let expected = format!("{{\"at\":{last}}}\n{{\"at\":\"1970-01-01T02:00:00+02:00\"}}\n");
    assert_eq!(String::from_utf8(lines).unwrap(), expected);
}

#[test]
fn nested_values_are_those_of_arrow_json() {
    let lists = [Some(vec![Some(1), None, Some(-3)]), None, Some(Vec::new()), Some(vec![Some(7)])];
    check(Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists.clone())));
    check(Arc::new(LargeListArray::from_iter_primitive::<Int32Type, _, _>(lists)));
    let pairs = [Some(vec![Some(1), None]), None, Some(vec![Some(3), Some(4)])];
    check(Arc::new(FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(pairs, 2)));
    let mut deep = ListBuilder::new(ListBuilder::new(StringBuilder::new()));
    deep.values().values().append_value("a");
    deep.values().append(true);
    deep.values().append(false);
    deep.append(true);
    deep.append_null();
    deep.append(true);
    check(Arc::new(deep.finish()));
    let mut views = ListViewBuilder::new(Int64Builder::new());
    views.append_value([Some(1), None]);
    views.append_null();
    views.append_value([]);
    check(Arc::new(views.finish()));
    let mut maps = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
    for (key, value) in [("one", Some(1)), ("none", None)] {
        maps.keys().append_value(key);
        maps.values().append_option(value);
    }
    maps.append(true).unwrap();
    maps.append(false).unwrap();
    maps.append(true).unwrap();
    check(Arc::new(maps.finish()));
}

#[test]
fn encoded_values_are_those_of_arrow_json() {
    let words = [Some("right"), None, Some("wrong"), Some("right")];
    check(Arc::new(words.into_iter().collect::<DictionaryArray<Int8Type>>()));
    check(Arc::new([None::<&str>, None].into_iter().collect::<DictionaryArray<Int8Type>>()));
    let mut runs = StringRunBuilder::<Int32Type>::new();
    runs.extend([Some("a"), Some("a"), None, Some("b")]);
    check(Arc::new(runs.finish()));
}

/// `arrow-json` fails here, so the expected lines are written out.
#[test]
fn a_null_among_the_values_of_a_dictionary_is_null() {
    let values = Arc::new(StringArray::from(vec![Some("right"), None]));
    let column: ArrayRef = Arc::new(DictionaryArray::<Int8Type>::new(Int8Array::from(vec![0, 1, 0]), values));
    let batch = RecordBatch::try_from_iter_with_nullable([("source", column, true)]).unwrap();
    let mut lines = Vec::new();
    write_lines(&batch, Nulls::Written, &mut lines);
    let expected = "{\"source\":\"right\"}\n{\"source\":null}\n{\"source\":\"right\"}\n";
    assert_eq!(String::from_utf8(lines).unwrap(), expected);
}

fn lines_of(column: ArrayRef) -> String {
    let batch = RecordBatch::try_from_iter_with_nullable([("x", column, true)]).unwrap();
    let mut lines = Vec::new();
    write_lines(&batch, Nulls::Omitted, &mut lines);
    String::from_utf8(lines).unwrap()
}

/// Parquet marks a timestamp in UTC with this zone, for which `arrow-json` fails.
#[test]
fn a_timestamp_of_a_named_zone_is_in_utc() {
    for zone in ["UTC", "Europe/Paris"] {
        let column = TimestampMillisecondArray::from(vec![1_700_000_000_120]).with_timezone(zone);
        assert_eq!(lines_of(Arc::new(column)), "{\"x\":\"2023-11-14T22:13:20.120Z\"}\n", "{zone}");
    }
}

#[test]
fn an_interval_is_an_object_of_its_parts() {
    assert_eq!(lines_of(Arc::new(IntervalYearMonthArray::from(vec![14]))), "{\"x\":{\"months\":14}}\n");
    let days = IntervalDayTimeArray::from(vec![IntervalDayTime::new(1, -2)]);
    assert_eq!(lines_of(Arc::new(days)), "{\"x\":{\"days\":1,\"milliseconds\":-2}}\n");
    let months = IntervalMonthDayNanoArray::from(vec![IntervalMonthDayNano::new(1, 2, 3)]);
    assert_eq!(lines_of(Arc::new(months)), "{\"x\":{\"months\":1,\"days\":2,\"nanoseconds\":3}}\n");
}

#[test]
fn a_map_without_text_as_keys_is_an_array() {
    let mut maps = MapBuilder::new(None, Int64Builder::new(), Int64Builder::new());
    maps.keys().append_value(7);
    maps.values().append_value(8);
    maps.append(true).unwrap();
    maps.append(true).unwrap();
    let expected = "{\"x\":[{\"key\":7,\"value\":8}]}\n{\"x\":[]}\n";
    assert_eq!(lines_of(Arc::new(maps.finish())), expected);
}

#[test]
fn a_union_is_the_value_that_it_holds() {
    for mut union in [UnionBuilder::new_dense(), UnionBuilder::new_sparse()] {
        union.append::<Int32Type>("number", 7).unwrap();
        union.append::<Float32Type>("fraction", 0.5).unwrap();
        union.append_null::<Int32Type>("number").unwrap();
        let column: ArrayRef = Arc::new(union.build().unwrap());
        assert_eq!(lines_of(Arc::clone(&column)), "{\"x\":7}\n{\"x\":0.5}\n{}\n");
        assert_eq!(lines_of(column.slice(1, 1)), "{\"x\":0.5}\n");
    }
}

#[test]
fn a_decimal_has_all_its_digits() {
    let column = Decimal128Array::from(vec![12_345_678_901_234_567_890_123]);
    let column: ArrayRef = Arc::new(column.with_precision_and_scale(30, 3).unwrap());
    assert_eq!(column.as_primitive::<Decimal128Type>().value_as_string(0), "12345678901234567890.123");
    let mut lines = Vec::new();
    write_lines(&RecordBatch::try_from_iter([("x", column)]).unwrap(), Nulls::Omitted, &mut lines);
    assert_eq!(String::from_utf8(lines).unwrap(), "{\"x\":12345678901234567890.123}\n");
}

/// Whether a member of a line stands for a value. `arrow-json` may print another last digit of a number, so the
/// property compares with the values themselves.
fn stands_for<T: Copy>(found: Option<&Value>, value: Option<T>, is_equal: impl Fn(f64, T) -> bool) -> bool {
    match (found.filter(|found| !found.is_null()).map(|found| found.as_f64().unwrap()), value) {
        (Some(found), Some(value)) => is_equal(found, value),
        (found, value) => found.is_none() && value.is_none(),
    }
}

proptest! {
    /// The columns of a queue: token ids, log-probabilities, rewards and texts.
    #[test]
    fn lines_have_the_values_of_their_rows(
        rows in prop::collection::vec(
            (
                prop::option::of(prop::collection::vec(any::<i32>(), 0..20)),
                prop::collection::vec(prop::option::of(any::<f32>()), 0..20),
                prop::option::of(any::<f64>()),
                prop::option::of(any::<String>()),
            ),
            0..10,
        ),
        nulls in prop::sample::select(vec![Nulls::Omitted, Nulls::Written]),
    ) {
        let ids = rows.iter().map(|row| row.0.clone().map(|ids| ids.into_iter().map(Some)));
        let logprobs = rows.iter().map(|row| Some(row.1.clone()));
        let columns: [(&str, ArrayRef); 4] = [
            ("ids", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(ids))),
            ("logprobs", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(logprobs))),
            ("reward", Arc::new(rows.iter().map(|row| row.2).collect::<Float64Array>())),
            ("text", Arc::new(rows.iter().map(|row| row.3.as_deref()).collect::<StringArray>())),
        ];
        let columns = columns.map(|(name, column)| (name, column, true));
        let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        let mut lines = Vec::new();
        write_lines(&batch, nulls, &mut lines);
        let lines = parsed(&lines);
        prop_assert_eq!(lines.len(), rows.len());
        for (line, (ids, logprobs, reward, text)) in lines.iter().zip(rows) {
            prop_assert!(nulls == Nulls::Omitted || line.as_object().unwrap().len() == 4, "{}", line);
            prop_assert_eq!(line.get("ids").cloned().unwrap_or_default(), Value::from(ids));
            prop_assert_eq!(line.get("text").and_then(Value::as_str), text.as_deref());
            // The parser of serde_json may miss a number by its last digit.
            let is_reward = |found: f64, reward: f64| {
                (found - reward).abs() <= reward.abs().max(f64::MIN_POSITIVE) * 2.0 * f64::EPSILON
            };
            let reward = reward.filter(|reward| reward.is_finite());
            prop_assert!(stands_for(line.get("reward"), reward, is_reward), "{} {:?}", line, reward);
            let found = line["logprobs"].as_array().unwrap();
            prop_assert_eq!(found.len(), logprobs.len());
            for (found, logprob) in found.iter().zip(logprobs) {
                let logprob = logprob.filter(|logprob| logprob.is_finite());
                let is_logprob = |found: f64, logprob: f32| (found as f32).to_bits() == logprob.to_bits();
                prop_assert!(stands_for(Some(found), logprob, is_logprob), "{} {:?}", found, logprob);
            }
        }
    }
}
