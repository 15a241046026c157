//! Adds servers that did not answer when the fleet was opened.
//!
//! Each server is asked separately until it has joined, so a silent server does not delay the others. A
//! server that has joined is an ordinary member. If an operator removes it, it is not asked again.

use std::time::Duration;

use futures::future::join_all;
use tokio_util::sync::CancellationToken;

use super::{Membership, MembershipError, NewMember};
use crate::BalancerError;

/// First pause before a server is asked again. It doubles each time.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest such pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);

pub(super) async fn admit(members: &Membership, absent: Vec<NewMember>, end: &CancellationToken) {
    let joining = join_all(absent.into_iter().map(|member| join(members, member)));
    // `end` is cancelled when the fleet is closed.
    let _ = end.run_until_cancelled(joining).await;
}

async fn join(members: &Membership, member: NewMember) {
    let mut pause = PAUSE_MIN;
    let mut was_absent = true;
    loop {
        let error = match members.add(member.clone()).await {
            // The server may have joined by a call or by the fleet's file.
            Ok(_) | Err(MembershipError::Balancer(BalancerError::DuplicateServer { .. })) => return,
            Err(error) => error,
        };
        let is_absent = matches!(error, MembershipError::Absent { .. });
        if was_absent && !is_absent {
            tracing::warn!(%error, "a server that answers late stays out until it can be used");
        } else {
            tracing::debug!(%error, "a server still does not join");
        }
        was_absent = is_absent;
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
