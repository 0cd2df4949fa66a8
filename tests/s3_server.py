"""A local S3 server (moto's), with the methods of `bucket_server.BucketServer`."""

import logging
import urllib.request


class S3Server:
    """Buckets in memory, on a free port of the loopback."""

    def __init__(self):
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.url = f"http://{host}:{port}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that point clients to this server."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def make(self, bucket: str) -> None:
        self._client().create_bucket(Bucket=bucket)

    def put(self, bucket: str, name: str, content: bytes) -> None:
        self._client().put_object(Bucket=bucket, Key=name, Body=content)

    def content(self, bucket: str, name: str) -> bytes:
        return self._client().get_object(Bucket=bucket, Key=name)["Body"].read()

    def names(self, bucket: str) -> list[str]:
        found = self._client().list_objects_v2(Bucket=bucket).get("Contents", [])
        return sorted(each["Key"] for each in found)

    def close(self) -> None:
        # All servers of a process have the same buckets.
        urllib.request.urlopen(f"{self.url}/moto-api/reset", data=b"").close()
        self._server.stop()

    def _client(self):
        import boto3

        variables = self.environment
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
            region_name=variables["AWS_DEFAULT_REGION"],
        )
