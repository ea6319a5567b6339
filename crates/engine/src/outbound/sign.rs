//! Signatures as Standard Webhooks has them: HMAC-SHA256 over id, time and body, base64, one per secret.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use domain::DeliveryId;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

const PREFIX: &str = "whsec_";

/// What a receiver knows the message by; the same for every attempt.
pub fn message_id(delivery: DeliveryId) -> String {
    format!("msg_{}", delivery.uuid().simple())
}

/// The value of `webhook-signature`: one signature per secret, so that a secret can be changed without a gap. Nothing
/// when there is no secret that can sign.
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

/// The bytes that a secret stands for.
pub fn key(secret: &str) -> Option<Vec<u8>> {
    STANDARD.decode(secret.strip_prefix(PREFIX)?).ok().filter(|key| !key.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification's own test suites.
    #[test]
    fn q10_the_published_vector_is_signed_alike() {
        let secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned()];
        let signed = signature(&secrets, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#);
        assert_eq!(signed.as_deref(), Some("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="));
    }

    #[test]
    fn q10_each_secret_signs_and_what_is_no_secret_does_not() {
        let secrets = ["whsec_YQ==".to_owned(), "whsec_Yg==".to_owned(), "plain".to_owned()];
        let signed = signature(&secrets, "msg_1", 1, "{}").expect("two sign");
        assert_eq!(signed.split(' ').count(), 2);
        assert_eq!(signature(&["plain".into()], "msg_1", 1, "{}"), None);
    }
}
