//! One AEAD key: ChaCha20-Poly1305 with a fresh nonce for every seal.

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use crate::clock::fill_random;

pub(super) const KEY_BYTES: usize = 32;

pub(super) struct Cipher(LessSafeKey);

impl Cipher {
    pub(super) fn new(secret: &[u8; KEY_BYTES]) -> Self {
        let key = UnboundKey::new(&CHACHA20_POLY1305, secret).expect("the key has the right length");
        Self(LessSafeKey::new(key))
    }

    /// The nonce and what is sealed. It opens with the same `bound_to` alone.
    pub(super) fn seal(&self, bound_to: &str, plain: &[u8]) -> Vec<u8> {
        let mut nonce = [0; NONCE_LEN];
        // Drawn at random: for one key that is safe for four thousand million seals, and every tenant has its own.
        fill_random(&mut nonce);
        let mut sealed = plain.to_vec();
        self.0
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(bound_to), &mut sealed)
            .expect("a secret is shorter than what the cipher takes");
        [&nonce[..], &sealed].concat()
    }

    /// Nothing where it was changed, or belongs elsewhere.
    pub(super) fn open(&self, bound_to: &str, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let mut bytes = sealed.to_vec();
        let plain = self.0.open_in_place(Nonce::assume_unique_for_key(*nonce), Aad::from(bound_to), &mut bytes).ok()?;
        Some(plain.to_vec())
    }
}

/// A key drawn at random.
pub(super) fn fresh_key() -> [u8; KEY_BYTES] {
    let mut secret = [0; KEY_BYTES];
    fill_random(&mut secret);
    secret
}
