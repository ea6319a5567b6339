//! Tests against a minimal S3 server that supports uploads, downloads and deletions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::aws::AmazonS3Builder;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::queue::artifacts::Blobs;

#[derive(Default)]
struct Bucket {
    objects: BTreeMap<String, Vec<u8>>,
    parts: BTreeMap<u32, Vec<u8>>,
}

impl Bucket {
    /// Returns the status and body of the response.
    fn respond(&mut self, method: &str, target: &str, body: Vec<u8>) -> (u16, Vec<u8>) {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let part = query.split('&').find_map(|pair| pair.strip_prefix("partNumber=")).map(|n| n.parse().unwrap());
        match (method, part) {
            ("POST", _) if query.starts_with("uploads") => {
                (200, b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>".into())
            }
            ("PUT", Some(part)) => {
                self.parts.insert(part, body);
                (200, Vec::new())
            }
            ("PUT", None) => {
                self.objects.insert(path.into(), body);
                (200, Vec::new())
            }
            ("HEAD", _) => (if self.objects.contains_key(path) { 200 } else { 404 }, Vec::new()),
            ("POST", _) if query.contains("uploadId=") => {
                let object = std::mem::take(&mut self.parts).into_values().flatten().collect();
                self.objects.insert(path.into(), object);
                (200, b"<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>".into())
            }
            ("POST", _) if query.starts_with("delete") => {
                let request = String::from_utf8(body).unwrap();
                let mut deleted = String::new();
                for key in request.split("<Key>").skip(1) {
                    let key = key.split('<').next().unwrap();
                    self.objects.retain(|path, _| !path.ends_with(key));
                    deleted += &format!("<Deleted><Key>{key}</Key></Deleted>");
                }
                (200, format!("<DeleteResult>{deleted}</DeleteResult>").into())
            }
            ("DELETE", _) => {
                self.parts.clear();
                (204, Vec::new())
            }
            ("GET", _) => self.objects.get(path).map_or((404, Vec::new()), |object| (200, object.clone())),
            _ => (400, Vec::new()),
        }
    }
}

async fn serve(connection: TcpStream, bucket: Arc<Mutex<Bucket>>) -> std::io::Result<()> {
    let mut connection = BufReader::new(connection);
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if connection.read_until(b'\n', &mut head).await? == 0 {
                return Ok(());
            }
        }
        let head = String::from_utf8(head).unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
        let mut body = vec![0; length.parse().unwrap()];
        connection.read_exact(&mut body).await?;
        let mut request = head.split(' ');
        let (method, target) = (request.next().unwrap(), request.next().unwrap());
        let (status, body) = bucket.lock().unwrap().respond(method, target, body);
        let headers = "etag: \"e\"\r\nlast-modified: Wed, 21 Oct 2015 07:28:00 GMT";
        let head = format!("HTTP/1.1 {status} -\r\n{headers}\r\ncontent-length: {}\r\n\r\n", body.len());
        connection.write_all(&[head.as_bytes(), &body].concat()).await?;
    }
}

/// Requirement Q9.
#[tokio::test]
async fn a_bucket_stores_a_multipart_blob_and_returns_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let bucket = Arc::new(Mutex::new(Bucket::default()));
    let mut server = JoinSet::new();
    let objects = bucket.clone();
    server.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((connection, _)) = listener.accept().await {
            connections.spawn(serve(connection, objects.clone()));
        }
    });
    let builder = AmazonS3Builder::new()
        .with_endpoint(endpoint)
        .with_region("eu-central-1")
        .with_access_key_id("id")
        .with_secret_access_key("secret");
    let blobs = Blobs::bucket("s3://shelf/some/prefix", builder).unwrap();

    let content: Vec<u8> = (0..9_000_001u32).map(|n| (n % 251) as u8).collect();
    let mut upload = blobs.begin("2/blob").await.unwrap();
    for chunk in content.chunks(1 << 20) {
        upload.write(Bytes::copy_from_slice(chunk)).await.unwrap();
    }
    assert!(bucket.lock().unwrap().objects.is_empty(), "a blob is invisible until it is complete");
    upload.finish().await.unwrap();
    let names: Vec<String> = bucket.lock().unwrap().objects.keys().cloned().collect();
    assert_eq!(names, ["/shelf/some/prefix/2/blob"]);

    let bytes = blobs.read("2/blob", Sha256::digest(&content).into()).await.unwrap();
    let read: Vec<Bytes> = bytes.try_collect().await.unwrap();
    assert!(read.concat() == content);
    blobs.delete("2/blob").await.unwrap();
    assert!(bucket.lock().unwrap().objects.is_empty());
    blobs.delete("2/blob").await.unwrap();
    let mut aborted = blobs.begin("2/other").await.unwrap();
    aborted.write(Bytes::from(content)).await.unwrap();
    aborted.abort().await;
    assert!(bucket.lock().unwrap().objects.is_empty());

    assert!(!blobs.has("mark").await.unwrap());
    blobs.put_empty("mark").await.unwrap();
    assert!(blobs.has("mark").await.unwrap());
}
