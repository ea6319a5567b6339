// Next.js: pushes a job.

import { resize } from "../../../../jobs.js";

export async function POST(request: Request): Promise<Response> {
  const { id } = await resize.push(await request.json());
  return Response.json({ id }, { status: 202 });
}
