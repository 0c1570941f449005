//! Numbers of clients whose waiting requests take turns (`fair` of an application).

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

use forebay_conf::Template;
use forebay_net::head::Request;

use crate::access::{KeyPart, client_network, key_texts};

/// Finds the number of a request's client.
pub struct Turns(Vec<KeyPart>);

impl Turns {
    /// Creates the numbers for `fair`. Requests with the same text are of one client.
    pub fn new(fair: &Template) -> Self {
        Self(fair.parts().iter().map(KeyPart::of).collect())
    }

    /// Returns the number of the request's client.
    pub fn client(&self, request: &Request) -> u64 {
        // All threads share the queue, so they need the same numbers. The hash is random, so that no
        // client can choose the number of another one.
        static HASHER: OnceLock<RandomState> = OnceLock::new();
        let hasher = HASHER.get_or_init(RandomState::new);
        match &self.0[..] {
            [] => 0,
            [KeyPart::Client] => {
                let network = request.client.ip().map(client_network);
                network.map_or(0, |(network, length)| hasher.hash_one(&network[..length]))
            }
            parts => hasher.hash_one(key_texts(parts, &[], request)),
        }
    }
}
