//! Authenticated encryption with ChaCha20-Poly1305 and a random nonce per message.

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use crate::db::clock::fill_random;

pub(super) const KEY_BYTES: usize = 32;

pub(super) struct Cipher(LessSafeKey);

impl Cipher {
    pub(super) fn new(secret: &[u8; KEY_BYTES]) -> Self {
        let key = UnboundKey::new(&CHACHA20_POLY1305, secret).expect("the key has the right length");
        Self(LessSafeKey::new(key))
    }

    /// Encrypts `plain` and returns the nonce followed by the ciphertext. `bound_to` is the associated data: opening
    /// requires the same value.
    pub(super) fn seal(&self, bound_to: &str, plain: &[u8]) -> Vec<u8> {
        let mut nonce = [0; NONCE_LEN];
        // A random 96-bit nonce is safe for about 2^32 messages per key, and every tenant has its own key.
        fill_random(&mut nonce);
        let mut sealed = plain.to_vec();
        self.0
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(bound_to), &mut sealed)
            .expect("a secret is shorter than what the cipher takes");
        [&nonce[..], &sealed].concat()
    }

    /// Decrypts. Returns `None` if the text was modified, or was sealed with another key or another `bound_to`.
    pub(super) fn open(&self, bound_to: &str, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let mut bytes = sealed.to_vec();
        let plain = self.0.open_in_place(Nonce::assume_unique_for_key(*nonce), Aad::from(bound_to), &mut bytes).ok()?;
        Some(plain.to_vec())
    }
}

/// Generates a random key.
pub(super) fn fresh_key() -> [u8; KEY_BYTES] {
    let mut secret = [0; KEY_BYTES];
    fill_random(&mut secret);
    secret
}
