//! Dates, times, timestamps and durations in the form of ISO 8601, and intervals by their parts.

use std::io::Write;

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::temporal_conversions::{
    as_date, as_datetime, as_datetime_with_timezone, as_duration, as_time,
};
use arrow_array::timezone::Tz;
use arrow_array::types::{
    ArrowPrimitiveType, ArrowTimestampType, Date32Type, Date64Type, DurationMicrosecondType,
    DurationMillisecondType, DurationNanosecondType, DurationSecondType, IntervalDayTimeType,
    IntervalMonthDayNanoType, IntervalYearMonthType, Time32MillisecondType, Time32SecondType,
    Time64MicrosecondType, Time64NanosecondType, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType,
};
use arrow_buffer::{IntervalDayTime, IntervalMonthDayNano};
use arrow_schema::{DataType, IntervalUnit, TimeUnit};
use chrono::{DateTime, FixedOffset, SecondsFormat};
use serde::Serialize;
use serde_json::json;

use crate::{WriteValue, write_json};

/// How the values of an array of moments, durations or intervals are written.
pub(crate) fn writer(array: &dyn Array) -> WriteValue<'_> {
    match array.data_type() {
        DataType::Date32 => dates::<Date32Type>(array),
        DataType::Time32(TimeUnit::Second) => times::<Time32SecondType>(array),
        DataType::Time32(_) => times::<Time32MillisecondType>(array),
        DataType::Time64(TimeUnit::Microsecond) => times::<Time64MicrosecondType>(array),
        DataType::Time64(_) => times::<Time64NanosecondType>(array),
        DataType::Duration(TimeUnit::Second) => durations::<DurationSecondType>(array),
        DataType::Duration(TimeUnit::Millisecond) => durations::<DurationMillisecondType>(array),
        DataType::Duration(TimeUnit::Microsecond) => durations::<DurationMicrosecondType>(array),
        DataType::Duration(TimeUnit::Nanosecond) => durations::<DurationNanosecondType>(array),
        DataType::Timestamp(TimeUnit::Second, zone) => {
            timestamps::<TimestampSecondType>(array, zone.as_deref())
        }
        DataType::Timestamp(TimeUnit::Millisecond, zone) => {
            timestamps::<TimestampMillisecondType>(array, zone.as_deref())
        }
        DataType::Timestamp(TimeUnit::Microsecond, zone) => {
            timestamps::<TimestampMicrosecondType>(array, zone.as_deref())
        }
        DataType::Timestamp(TimeUnit::Nanosecond, zone) => {
            timestamps::<TimestampNanosecondType>(array, zone.as_deref())
        }
        DataType::Interval(unit) => intervals(array, *unit),
        _ => datetimes::<Date64Type>(array),
    }
}

/// Writes what `text` makes of a value, or the value itself where `text` has no form for it.
fn moments<'a, T>(array: &'a dyn Array, text: impl Fn(i64) -> Option<String> + 'a) -> WriteValue<'a>
where
    T: ArrowPrimitiveType<Native: Into<i64> + Serialize>,
{
    let values = array.as_primitive::<T>().values();
    Box::new(move |place, out| match text(values[place].into()) {
        Some(text) => {
            // Writing to a vector cannot fail.
            let _ = write!(out, "\"{text}\"");
        }
        None => write_json(&values[place], out),
    })
}

fn dates<T: ArrowPrimitiveType<Native: Into<i64> + Serialize>>(array: &dyn Array) -> WriteValue<'_> {
    moments::<T>(array, |value| as_date::<T>(value).map(|date| date.to_string()))
}

fn times<T: ArrowPrimitiveType<Native: Into<i64> + Serialize>>(array: &dyn Array) -> WriteValue<'_> {
    moments::<T>(array, |value| as_time::<T>(value).map(|time| time.to_string()))
}

fn durations<T: ArrowPrimitiveType<Native: Into<i64> + Serialize>>(array: &dyn Array) -> WriteValue<'_> {
    moments::<T>(array, |value| as_duration::<T>(value).map(|duration| duration.to_string()))
}

/// Dates with a time and without a zone. Their `Debug` format is the form of ISO 8601 with a `T`; their `Display`
/// format has a space.
fn datetimes<T: ArrowPrimitiveType<Native: Into<i64> + Serialize>>(array: &dyn Array) -> WriteValue<'_> {
    moments::<T>(array, |value| as_datetime::<T>(value).map(|moment| format!("{moment:?}")))
}

/// Timestamps with their offset. Only offsets such as `+02:00` can be parsed, so a timestamp with a named zone is
/// written in UTC.
fn timestamps<'a, T: ArrowTimestampType>(array: &'a dyn Array, zone: Option<&str>) -> WriteValue<'a> {
    let Some(zone) = zone else { return datetimes::<T>(array) };
    let zone = zone.parse::<Tz>().ok();
    moments::<T>(array, move |value| {
        let with_offset = |moment: DateTime<FixedOffset>| {
            // The local time may be out of range although the time in UTC is not.
            moment.naive_utc().checked_add_offset(*moment.offset())?;
            Some(moment.to_rfc3339_opts(SecondsFormat::AutoSi, true))
        };
        match zone {
            Some(zone) => as_datetime_with_timezone::<T>(value, zone)
                .and_then(|moment| with_offset(moment.fixed_offset())),
            None => as_datetime::<T>(value).and_then(|moment| with_offset(moment.and_utc().fixed_offset())),
        }
    })
}

/// The parts of an interval, which have no common unit.
fn intervals(array: &dyn Array, unit: IntervalUnit) -> WriteValue<'_> {
    match unit {
        IntervalUnit::YearMonth => {
            let values = array.as_primitive::<IntervalYearMonthType>().values();
            Box::new(move |place, out| write_json(&json!({"months": values[place]}), out))
        }
        IntervalUnit::DayTime => {
            let values = array.as_primitive::<IntervalDayTimeType>().values();
            Box::new(move |place, out| {
                let IntervalDayTime { days, milliseconds } = values[place];
                write_json(&json!({"days": days, "milliseconds": milliseconds}), out);
            })
        }
        IntervalUnit::MonthDayNano => {
            let values = array.as_primitive::<IntervalMonthDayNanoType>().values();
            Box::new(move |place, out| {
                let IntervalMonthDayNano { months, days, nanoseconds } = values[place];
                write_json(&json!({"months": months, "days": days, "nanoseconds": nanoseconds}), out);
            })
        }
    }
}
