/*
 * kexec load KERNEL INITRAMFS COMMAND-LINE: loads a kernel. kexec go: shuts the drivers down and starts that kernel.
 * kexec load-crash ...: loads a kernel that is started when the running kernel crashes.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/kexec.h>
#include <linux/reboot.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int count, char **words)
{
	if (count == 5 && (!strcmp(words[1], "load") || !strcmp(words[1], "load-crash"))) {
		int flags = strcmp(words[1], "load") ? KEXEC_FILE_ON_CRASH : 0;
		int kernel = open(words[2], O_RDONLY), initramfs = open(words[3], O_RDONLY);

		if (!syscall(SYS_kexec_file_load, kernel, initramfs, strlen(words[4]) + 1, words[4], flags))
			return 0;
	} else if (count == 2 && !strcmp(words[1], "go")) {
		syscall(SYS_reboot, LINUX_REBOOT_MAGIC1, LINUX_REBOOT_MAGIC2, LINUX_REBOOT_CMD_KEXEC, NULL);
	}
	perror("kexec");
	return 1;
}
