//! Signatures per the Standard Webhooks specification: HMAC-SHA256 over id, timestamp and body, in base64, one per
//! secret.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use domain::DeliveryId;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

const PREFIX: &str = "whsec_";

/// The message id. All attempts of a delivery have the same one.
pub fn message_id(delivery: DeliveryId) -> String {
    format!("msg_{}", delivery.uuid().simple())
}

/// The value of `webhook-signature`: one signature per secret, which allows a rotation without downtime. `None` if no
/// secret is usable.
pub fn signature(secrets: &[String], id: &str, timestamp_s: i64, body: &str) -> Option<String> {
    let signatures: Vec<String> = secrets
        .iter()
        .filter_map(|secret| key(secret))
        .map(|key| {
            let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("any length is a key");
            mac.update(format!("{id}.{timestamp_s}.").as_bytes());
            mac.update(body.as_bytes());
            format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
        })
        .collect();
    (!signatures.is_empty()).then(|| signatures.join(" "))
}

/// The key bytes that a secret encodes.
pub fn key(secret: &str) -> Option<Vec<u8>> {
    STANDARD.decode(secret.strip_prefix(PREFIX)?).ok().filter(|key| !key.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example from the specification's test suites.
    /// Requirement Q10.
    #[test]
    fn a_signature_matches_the_published_test_vector() {
        let secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned()];
        let signed = signature(&secrets, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#);
        assert_eq!(signed.as_deref(), Some("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="));
    }

    /// Requirement Q10.
    #[test]
    fn each_valid_secret_adds_a_signature() {
        let secrets = ["whsec_YQ==".to_owned(), "whsec_Yg==".to_owned(), "plain".to_owned()];
        let signed = signature(&secrets, "msg_1", 1, "{}").expect("two secrets are usable");
        assert_eq!(signed.split(' ').count(), 2);
        assert_eq!(signature(&["plain".into()], "msg_1", 1, "{}"), None);
    }
}
