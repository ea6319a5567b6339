// Next.js: sends the progress of a job to the browser.

import { wl } from "../../../../../../jobs.js";

export const dynamic = "force-dynamic";

export async function GET(request: Request, { params }: { params: Promise<{ id: string }> }): Promise<Response> {
  const { id } = await params;
  return wl.handle(id).response(request);
}
