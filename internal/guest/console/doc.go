// Package console connects clients to what a guest shows: serial consoles, channels, VNC and SPICE displays,
// pictures of the screen, keys that are pressed for it, and the logs of its QEMU.
package console
