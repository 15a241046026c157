//! Encodes events of the bias meter as bytes, and decodes them: first the kind, then the figures of the group, if the
//! event has them.

use rolldock_dispatch::bias::{BiasEvent, Decision, GroupFigures};

use super::{Decoder, Encoder, Expected};

pub(super) fn encode(event: &BiasEvent, into: &mut Encoder) {
    let (kind, group) = match event {
        BiasEvent::Decided(Decision::Accepted(group)) => (0, Some(group)),
        BiasEvent::Decided(Decision::Missed(group)) => (1, Some(group)),
        BiasEvent::Decided(Decision::Filtered) => (2, None),
        BiasEvent::Decided(Decision::PassedOver) => (3, None),
        BiasEvent::Decided(Decision::Failed) => (4, None),
        BiasEvent::Decided(Decision::Cut) => (5, None),
        BiasEvent::Decided(Decision::Audited(None)) => (6, None),
        BiasEvent::Decided(Decision::Audited(Some(group))) => (7, Some(group)),
        BiasEvent::AuditBegan => (8, None),
        BiasEvent::AuditLost => (9, None),
        BiasEvent::TakenBack => (10, None),
        BiasEvent::Decided(Decision::Stopped) => (11, None),
        BiasEvent::RunsOn(_) => (12, None),
    };
    into.byte(kind);
    if let BiasEvent::RunsOn(share) = event {
        into.probability(*share);
    }
    if let Some(group) = group {
        encode_group(group, into);
    }
}

pub(super) fn encode_group(group: &GroupFigures, into: &mut Encoder) {
    let GroupFigures { samples, tokens, right } = group;
    into.number(u64::from(*samples));
    into.number(*tokens);
    into.float(*right);
}

pub(super) fn decode(from: &mut Decoder<'_>) -> Result<BiasEvent, Expected> {
    Ok(match from.byte()? {
        0 => BiasEvent::Decided(Decision::Accepted(decode_group(from)?)),
        1 => BiasEvent::Decided(Decision::Missed(decode_group(from)?)),
        2 => BiasEvent::Decided(Decision::Filtered),
        3 => BiasEvent::Decided(Decision::PassedOver),
        4 => BiasEvent::Decided(Decision::Failed),
        5 => BiasEvent::Decided(Decision::Cut),
        6 => BiasEvent::Decided(Decision::Audited(None)),
        7 => BiasEvent::Decided(Decision::Audited(Some(decode_group(from)?))),
        8 => BiasEvent::AuditBegan,
        9 => BiasEvent::AuditLost,
        10 => BiasEvent::TakenBack,
        11 => BiasEvent::Decided(Decision::Stopped),
        12 => BiasEvent::RunsOn(from.probability(f32::MIN_POSITIVE)?),
        _ => return Err("a known event of the bias meter"),
    })
}

pub(super) fn decode_group(from: &mut Decoder<'_>) -> Result<GroupFigures, Expected> {
    Ok(GroupFigures { samples: from.number_u32()?, tokens: from.number()?, right: from.float()? })
}
