//! Checks that the addresses on which a run will listen are free, before anything is opened or written.

use std::net::{SocketAddr, TcpListener};

use crate::recipe::Recipe;

/// Binds every address of the recipe once, and releases all of them again.
///
/// # Errors
/// If some of them cannot be bound; the error names all of these with their keys.
pub(super) fn check(recipe: &Recipe) -> anyhow::Result<()> {
    let admin = recipe.fleet.admin.as_deref().and_then(|admin| admin.parse().ok());
    let addresses: [(&str, Option<SocketAddr>); 3] = [
        ("queue.listen", recipe.queue.address()),
        ("policy.listen", recipe.policy.address()),
        ("fleet.admin", admin),
    ];
    // They are held until the end, so that two keys with one port are found too.
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
