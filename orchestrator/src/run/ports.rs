//! Checks that the addresses on which a run will listen are free, before anything is opened or written.

use std::net::{SocketAddr, TcpListener};

use crate::recipe::Recipe;

/// Binds every address of the recipe once, and releases all of them again.
///
/// # Errors
/// Returns an error that names every address that cannot be bound, with its key.
pub(super) fn check(recipe: &Recipe) -> anyhow::Result<()> {
    let admin = recipe.fleet.admin.as_deref().and_then(|admin| admin.parse().ok());
    let addresses: [(&str, Option<SocketAddr>); 4] = [
        ("queue.listen", recipe.queue.address()),
        ("policy.listen", recipe.policy.address()),
        ("fleet.admin", admin),
        ("gateway.listen", recipe.gateway.as_ref().map(|gateway| gateway.listen)),
    ];
    // All listeners stay bound until the end, so that two keys with the same port are found too.
    let mut held = Vec::new();
    let mut refused = Vec::new();
    for (key, address) in addresses {
        let Some(address) = address else { continue };
        match TcpListener::bind(address) {
            Ok(listener) => held.push(listener),
            Err(error) => refused.push(format!("{key}={address}: {error}")),
        }
    }
    match refused.is_empty() {
        true => Ok(()),
        false => anyhow::bail!("cannot listen at {}", refused.join("; ")),
    }
}
