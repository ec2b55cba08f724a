"""Jobs of one client: from JOB_BEGIN to JOB_END.

`jobs` does what the messages say; `standing` is a task's rank, `demand` what a job asks the device
for, `charging` what it is charged, `revocation` how it loses the device, `cached_lease_jobs` those
that began without a message.
"""
