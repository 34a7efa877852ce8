/* SHA-256 through libgcrypt. See digest.h. */
#include "cache/cli/digest.h"

#include <gcrypt.h>
#include <stdio.h>

Status digest_begin(Digest **out)
{
    gcry_md_hd_t handle = NULL;
    *out = NULL;
    if (!gcry_check_version(GCRYPT_VERSION)) /* begins the library, too */
        return fail(ST_INTERNAL, "libgcrypt is older than %s, which this command was built with", GCRYPT_VERSION);
    gcry_control(GCRYCTL_DISABLE_SECMEM, 0);
    gcry_control(GCRYCTL_INITIALIZATION_FINISHED, 0);
    gcry_error_t error = gcry_md_open(&handle, GCRY_MD_SHA256, 0);
    if (error)
        return fail(ST_INTERNAL, "no SHA-256: %s", gcry_strerror(error));
    *out = (Digest *)handle;
    return ST_OK;
}

void digest_add(Digest *digest, const void *bytes, size_t n) { gcry_md_write((gcry_md_hd_t)digest, bytes, n); }

void digest_end(Digest *digest, char hex[DIGEST_HEX + 1])
{
    hex[0] = '\0';
    if (!digest)
        return;
    const unsigned char *bytes = gcry_md_read((gcry_md_hd_t)digest, GCRY_MD_SHA256);
    for (int i = 0; i < DIGEST_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
    gcry_md_close((gcry_md_hd_t)digest);
}
