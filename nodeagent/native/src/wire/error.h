/* The calling thread's last failure, as one sentence. */
#ifndef TIERLINE_ERROR_H
#define TIERLINE_ERROR_H

#define TL_SENTENCE_BYTES 384

/* Keeps the sentence for tierline_last_error and returns code. */
int tl_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same, with errno's meaning at the end: "...: no space left on device". */
int tl_fail_errno(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
